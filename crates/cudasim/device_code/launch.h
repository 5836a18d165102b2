// Runs kernels by their machine code.
#pragma once

#include <memory>

#include "code.h"
#include "reach.h"

namespace cudasim::device_code {

struct Launch {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;          ///< dynamic ones
    std::vector<char> parameters;   ///< bytes as they lie in bank 0, from the first parameter on
};

/// The image that CUDASIM_DEVICE_CODE names, read when first asked for; null if it is not set. Ends the program if the image
/// cannot be read.
Image* image();
/// A kernel of it by name; null without an image or such a kernel.
Kernel* find_kernel(const std::string& name);
/// Copies the arguments of a launch, one pointer for each parameter, by the sizes that the cubin says.
std::vector<char> parameters_of(const Kernel& kernel, void** arguments);
/// The number of blocks of `threads` threads, at least one, that a multiprocessor has room for, by registers and threads; perhaps
/// 0. Shared memory is not looked at.
uint32_t resident_blocks(const Kernel& kernel, uint32_t arch, uint32_t threads);
/// Runs all blocks, one launch at a time, and adds its counts to the file that CUDASIM_COUNTS names. Ends the program at a
/// Failure.
void run(Kernel& kernel, const Launch& launch, Reach::Find find);

}  // namespace cudasim::device_code
