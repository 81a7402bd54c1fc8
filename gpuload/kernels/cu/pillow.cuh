// Pillow: its edits that make a pixel of those about a place; see `kernels.pillow`.

// The pixel in which a point lies, which Pillow finds by adding up steps.
__device__ inline int added_up(double begin, double first, int num_first, double second,
    int num_second, int length)
{
    double place = begin;
    for (int i = 0; i < num_first; ++i) place = place + first;
    for (int i = 0; i < num_second; ++i) place = place + second;
    return place < 0.0 ? -1 : place < (double)length ? (int)place : length;
}
__device__ inline void nearest_place(const Image& image, const double* m, int y, int x, int* row,
    int* column)
{
    int width = image.width, height = image.height;
    if (m[1] == 0.0 && m[3] == 0.0) {
        *column = added_up(m[2] + m[0] * 0.5, m[0], x, 0.0, 0, width);
        *row = added_up(m[5] + m[4] * 0.5, m[4], y, 0.0, 0, height);
        return;
    }
    double left = m[2] + m[0] * 0.5 + m[1] * 0.5, top = m[5] + m[3] * 0.5 + m[4] * 0.5;
    if (pillow::is_fixed(m, (double)width, (double)height)) {
        Long across = pillow::fixed(left) + y * pillow::fixed(m[1]) + x * pillow::fixed(m[0]);
        Long down = pillow::fixed(top) + y * pillow::fixed(m[4]) + x * pillow::fixed(m[3]);
        *column = (int)(across >> 16), *row = (int)(down >> 16);
    } else {
        *column = added_up(left, m[1], y, m[0], x, width);
        *row = added_up(top, m[4], y, m[3], x, height);
    }
}
__device__ inline double line_at(const Image& image, int row, int left, int channel, double place,
    bool is_cubic)
{
    double values[4];
    int y = clipped(row, image.height);
    for (int tap = 0; tap < 4; ++tap)
        values[tap] = (double)at(image, y, clipped(left + tap - 1, image.width), channel);
    if (is_cubic) return pillow::cubic(values[0], values[1], values[2], values[3], place);
    return pillow::linear(values[1], values[2], place);
}
__device__ inline void take_affine(const Image& image, const double* numbers, int y, int x,
    Out* to)
{
    const double *m = numbers + 1, *fill = numbers + 7;
    int kind = (int)numbers[0], row, column;
    if (kind == 0) {
        nearest_place(image, m, y, x, &row, &column);
        bool inside = row >= 0 && row < image.height && column >= 0 && column < image.width;
        for (int channel = 0; channel < CHANNELS; ++channel)
            to[channel] = inside ? at(image, row, column, channel) : (Out)fill[channel];
        return;
    }
    double across = (double)x + 0.5, down = (double)y + 0.5;
    double at_x = m[0] * across + m[1] * down + m[2], at_y = m[3] * across + m[4] * down + m[5];
    bool inside = at_x >= 0.0 && at_x < (double)image.width && at_y >= 0.0
        && at_y < (double)image.height;
    at_x = at_x - 0.5, at_y = at_y - 0.5;
    for (int channel = 0; channel < CHANNELS; ++channel) {
        if (!inside) {
            to[channel] = (Out)fill[channel];
            continue;
        }
        int left = (int)floor(at_x), top = (int)floor(at_y);
        double lines[4], part = at_y - (double)top;
        #pragma unroll 1
        for (int tap = 0; tap < 4; ++tap)
            lines[tap] = line_at(
                image, top + tap - 1, left, channel, at_x - (double)left, kind == 2);
        double value = pillow::linear(lines[1], lines[2], part);
        if (kind == 2) value = pillow::cubic(lines[0], lines[1], lines[2], lines[3], part);
        to[channel] = (Out)(value < 0.0 ? 0.0 : value > 255.0 ? 255.0 : value);
    }
}
// A pass of a box. Both lines have the values about a place, so many on each side; the border is
// repeated.
__device__ inline void add_box(const int* from, int from_reach, int* to, int to_reach, int place,
    int length, const double* numbers)
{
    int whole = (int)numbers[0], zero = from_reach - place;
    for (int i = -to_reach; i <= to_reach; ++i) {
        int middle = clipped(place + i, length), first = clipped(middle - whole - 1, length);
        int last = clipped(middle + whole + 1, length);
        unsigned sum = 0, edges = from[zero + first] + from[zero + last];
        for (int j = middle - whole; j <= middle + whole; ++j)
            sum += from[zero + clipped(j, length)];
        unsigned weight = (unsigned)numbers[1], edge_weight = (unsigned)numbers[2];
        to[to_reach + i] = (int)pillow::box_mean(sum, edges, weight, edge_weight);
    }
}
__device__ inline int three_boxes(const int* values, int place, int length, const double* numbers) {
    int reach = (int)numbers[0] + 1, third;
    int first[4 * pillow::MOST_BOX + 5], second[2 * pillow::MOST_BOX + 3];
    add_box(values, 3 * reach, first, 2 * reach, place, length, numbers);
    add_box(first, 2 * reach, second, reach, place, length, numbers);
    add_box(second, reach, &third, 0, place, length, numbers);
    return third;
}
__device__ inline float pillow_blurred(const Image& image, const double* numbers, int y, int x,
    int channel)
{
    int reach = 3 * ((int)numbers[0] + 1);
    int row[6 * pillow::MOST_BOX + 7], column[6 * pillow::MOST_BOX + 7];
    for (int j = -reach; j <= reach; ++j) {
        for (int i = -reach; i <= reach; ++i)
            row[reach + i] = at(
                image, clipped(y + j, image.height), clipped(x + i, image.width), channel);
        column[reach + j] = three_boxes(row, x, image.width, numbers);
    }
    return (float)three_boxes(column, y, image.height, numbers);
}
