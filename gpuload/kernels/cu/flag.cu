// Flag: one thread for each row of a batch says whether one is wrong.
extern "C" __global__ void set_flag(const bool* wrong, bool* flag, int rows)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows && wrong[row]) *flag = true;
}
