// Modules, functions, launches. A kernel must be named in the image, and compiled for the host or be in the
// machine code that CUDASIM_DEVICE_CODE names.

#include "../device_code/launch.h"
#include "sim.h"

namespace cudasim {

struct Module {
    Context* context;
    std::string image;
    bool names_hidden;  // compressed: names cannot be looked up
    std::atomic<bool> unloaded{false};
};

struct Function {
    Context* context;
    std::shared_ptr<Module> module;
    const Kernel* kernel;
    device_code::Kernel* machine_code;  ///< runs in its place, if there is any
    int dynamic_shared_bytes = 48 << 10;
};

static auto& modules = *new Table<CUmodule, Module>;
static auto& functions = *new Table<CUfunction, Function>;

size_t num_modules() { return modules.count(); }

void drop_modules_of(const Context* context) {
    modules.remove_of(context);
    functions.remove_of(context);
}

// ---- images ----------------------------------------------------------------------------------

constexpr uint32_t kFatbinMagic = 0xBA55ED50, kWrapperMagic = 0x466243B1;

template <class T>
static T read(const char* p) {
    T value;
    memcpy(&value, p, sizeof value);
    return value;
}

/// Whether a driver reads what the toolkit of these headers writes: machine code of its own major
/// version, PTX of its own version or an older one.
static bool is_too_new(bool is_ptx) {
    int driver = driver_version();
    return is_ptx ? driver < CUDA_VERSION : driver / 1000 < CUDA_VERSION / 1000;
}

/// Walks the parts of a fatbin: machine code and PTX, each for one architecture.
static CUresult check_parts(Module& module) {
    constexpr uint16_t kPtx = 1, kElf = 2;
    constexpr uint64_t kCompressed = 0x2000 | 0x8000;
    const std::string& image = module.image;
    int device = compute_capability();
    bool any = false, fits = false, ptx_too_new = false;
    for (size_t at = 16; at + 64 <= image.size();) {
        const char* part = image.data() + at;
        auto kind = read<uint16_t>(part);
        auto header = read<uint32_t>(part + 4);
        auto size = read<uint64_t>(part + 8);
        int arch = read<uint32_t>(part + 28);
        if ((kind != kPtx && kind != kElf) || header < 64) break;
        any = true;
        bool for_device = arch <= device && (kind == kPtx || arch / 10 == device / 10);
        fits |= for_device && !is_too_new(kind == kPtx);
        ptx_too_new |= for_device && kind == kPtx && is_too_new(true);
        module.names_hidden |= (read<uint64_t>(part + 40) & kCompressed) != 0;
        at += header + size;
    }
    if (!any || fits) return CUDA_SUCCESS;
    return ptx_too_new ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

/// A fatbin starts with a magic word, version and header size, then the size of the rest (u64).
static CUresult load(CUmodule* handle, const void* image, Context* context) {
    if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
    auto* bytes = static_cast<const char*>(image);
    if (read<uint32_t>(bytes) == kWrapperMagic) bytes = read<const char*>(bytes + 8);
    Guard guard(global);
    if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    auto module = std::make_shared<Module>(context, std::string(), false);
    if (read<uint32_t>(bytes) == kFatbinMagic) {
        module->image.assign(bytes, read<uint64_t>(bytes + 8) + 16);
        if (CUresult unfit = check_parts(*module)) return unfit;
    } else if (!strncmp(bytes, "//", 2) || !strncmp(bytes, ".version", 8)) {
        module->image = bytes;  // PTX
    } else {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *handle = modules.add(module);
    return CUDA_SUCCESS;
}

/// Whether work may run a kernel of the module; notes it if not.
static bool is_loaded(const Module& module) {
    if (module.unloaded) misuse("a kernel of an unloaded module ran");
    return !module.unloaded;
}

static std::shared_ptr<Function> find_function(CUfunction handle) {
    auto function = functions.find(handle);
    if (!function) misuse("unknown function or one of an unloaded module: %p", (void*)handle);
    return function;
}

}  // namespace cudasim

using namespace cudasim;

API cuModuleLoadData(CUmodule* module, const void* image) {
    ENTER_CONTEXT(context, nullptr);
    return load(module, image, context);
}

API cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
    ENTER_CONTEXT(context, nullptr);
    return load(module, image, context);
}

API cuModuleLoadFatBinary(CUmodule* module, const void* image) {
    ENTER_CONTEXT(context, nullptr);
    return load(module, image, context);
}

API cuModuleUnload(CUmodule handle) {
    ENTER_RELEASE(context, nullptr);
    Guard guard(global);
    auto module = modules.remove(handle);
    if (!module) {
        misuse("unload of unknown or unloaded module %p", (void*)handle);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    // Work that is enqueued, and graphs, lose their kernels: no document says that a driver waits or keeps them.
    module->unloaded = true;
    std::erase_if(functions.all, [&](auto& entry) { return entry.second->module == module; });
    return code;
}

API cuModuleGetFunction(CUfunction* handle, CUmodule module_handle, const char* name) {
    ENTER_CONTEXT(context, nullptr);
    if (!handle || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
    Guard guard(global);
    auto module = modules.find(module_handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    auto* kernel = find_kernel(name);
    auto* machine_code = device_code::find_kernel(name);
    bool named = module->names_hidden || module->image.find(name) != std::string::npos;
    if (!named || !(kernel || machine_code)) return CUDA_ERROR_NOT_FOUND;
    *handle = functions.add(std::make_shared<Function>(
        Function{module->context, module, kernel, machine_code}));
    return CUDA_SUCCESS;
}

// ---- functions -------------------------------------------------------------------------------

API cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
    ENTER();
    Guard guard(global);
    auto function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS:
            *value = function->machine_code ? function->machine_code->registers : 32;
            break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = compute_capability(); break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = function->dynamic_shared_bytes;
            break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}

API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    ENTER();
    Guard guard(global);
    auto function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || value > 227 << 10) return CUDA_ERROR_INVALID_VALUE;
        function->dynamic_shared_bytes = value;
    } else if (attribute != CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
    ENTER();
    Guard guard(global);
    return find_function(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult occupancy(int* num_blocks, CUfunction handle, int block_size) {
    Guard guard(global);
    auto function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!num_blocks || block_size < 1) return CUDA_ERROR_INVALID_VALUE;
    int threads = (block_size + 31) / 32 * 32;
    if (block_size > 1024) {
        *num_blocks = 0;
    } else if (function->machine_code) {
        *num_blocks = device_code::resident_blocks(*function->machine_code, compute_capability(), threads);
    } else {
        *num_blocks = std::min(2048 / threads, 32);
    }
    return CUDA_SUCCESS;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, CUfunction function,
                                                int block_size, size_t) {
    ENTER_CONTEXT(context, nullptr);
    return occupancy(num_blocks, function, block_size);
}

API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* num_blocks, CUfunction function,
                                                         int block_size, size_t, unsigned) {
    ENTER_CONTEXT(context, nullptr);
    return occupancy(num_blocks, function, block_size);
}

API cuOccupancyMaxPotentialBlockSize(int* min_grid_size, int* block_size, CUfunction function,
                                     CUoccupancyB2DSize, size_t, int limit) {
    ENTER_CONTEXT(context, nullptr);
    if (!min_grid_size || !block_size) return CUDA_ERROR_INVALID_VALUE;
    *block_size = limit > 0 ? std::min(limit, 1024) : 1024;
    CUresult result = occupancy(min_grid_size, function, *block_size);
    *min_grid_size *= num_multiprocessors();
    return result;
}

/// Queues a kernel. Where its copies of page-locked memory are stale, the host waits for its end: while it runs, they are in the
/// place of the memory.
static CUresult submit_kernel(Guard& guard, const StreamPtr& stream, Operation kernel) {
    if (!confidential) return submit(stream, std::move(kernel));
    Ticket ticket;
    CUresult code = submit(stream, [=] { with_stale_mappings(kernel); }, &ticket);
    guard.unlock();
    ticket.wait();
    return code;
}

API cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   CUstream stream_handle, void** params, void** extra) {
    ENTER_CONTEXT(context, stream_handle);
    Guard guard(global);
    auto function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    StreamPtr stream;
    if (CUresult unknown = find_stream(stream_handle, context, stream)) return unknown;
    if (function->context != context || stream->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    bool grid_fits = grid_x && grid_y && grid_z && grid_x <= 0x7FFFFFFF && grid_y <= 65535 &&
                     grid_z <= 65535;
    bool block_fits = block_x && block_y && block_z && block_x <= 1024 && block_y <= 1024 &&
                      block_z <= 64 && block_x * block_y * block_z <= 1024;
    bool shared_fits = shared_bytes <= unsigned(function->dynamic_shared_bytes);
    auto* machine_code = function->machine_code;
    size_t num_params = machine_code ? machine_code->parameters.size() : function->kernel->num_params;
    bool has_params = params || !num_params;
    auto module = function->module;
    note_blocks(grid_x);
    if (!grid_fits || !block_fits || !shared_fits || !has_params || extra)
        return CUDA_ERROR_INVALID_VALUE;
    if (machine_code) {
        device_code::Launch launch{{grid_x, grid_y, grid_z},
                                   {block_x, block_y, block_z},
                                   shared_bytes,
                                   device_code::parameters_of(*machine_code, params)};
        auto shared = std::make_shared<device_code::Launch>(std::move(launch));
        return submit_kernel(guard, stream, [=] {
            if (is_loaded(*module)) device_code::run(*machine_code, *shared, memory_in_use_at);
        });
    }
    Bound kernel = function->kernel->bind(params);
    dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
    return submit_kernel(guard, stream, [=] {
        if (is_loaded(*module)) run_grid(kernel, grid, block);
    });
}
