// Move: windows of images, mirrored or turned, of numbers of any meaning. `words` has where a
// window begins (top, left), whether it is mirrored (vertically, horizontally), quarters of a turn,
// a word without use, and the value outside of the image, eight bytes a channel.
typedef int Stats;

__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    int row = words[0] + (words[2] ? image.new_height - 1 - y : y);
    int column = words[1] + (words[3] ? image.new_width - 1 - x : x);
    if (words[4] == 1) row = x, column = image.width - 1 - y;
    if (words[4] == 2) row = image.height - 1 - y, column = image.width - 1 - x;
    if (words[4] == 3) row = image.height - 1 - x, column = y;
    bool inside = row >= 0 && row < image.height && column >= 0 && column < image.width;
    const int* fill = words + 6;
    for (int channel = 0; channel < CHANNELS; ++channel)
        to[channel] = inside ? at(image, row, column, channel) : *(const Out*)(fill + 2 * channel);
}
