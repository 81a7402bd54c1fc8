// Mosaic: one thread for each number of a result, which is that of the last of four pieces that lie
// there. The struct is the dtype `mosaic.PIECE`; `Pixel` is a number of any meaning.
#include "head.cuh"

struct Piece {
    Long address, down, across, deep;
    int top, left, bottom, right;
};

extern "C" __global__ void mosaic(const Piece* pieces, const Pixel* fills, Pixel* out, int height,
    int width, int channels, int blocks)
{
    unsigned number = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    unsigned size = (unsigned)height * width * channels;
    if (number >= size) return;
    Long image = blockIdx.x / blocks;
    int channel = number % channels, x = number / channels % width, y = number / channels / width;
    Pixel value = fills[channel];
    for (int k = 0; k < 4; ++k) {
        const Piece& piece = pieces[4 * image + k];
        if (y >= piece.top && y < piece.bottom && x >= piece.left && x < piece.right)
            value = ((const Pixel*)piece.address)
                [y * piece.down + x * piece.across + channel * piece.deep];
    }
    out[image * size + number] = value;
}
