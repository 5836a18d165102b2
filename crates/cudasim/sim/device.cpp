// Devices and their primary contexts.

#include "../device_code/launch.h"
#include "sim.h"

namespace cudasim {

constexpr int kMaxDevices = 4;

long setting(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}

int num_devices() {
    static int n = std::clamp<long>(setting("CUDASIM_DEVICES", 1), 0, kMaxDevices);
    return n;
}

size_t device_memory() {
    static size_t bytes = setting("CUDASIM_MEMORY", 1l << 30);
    return bytes;
}

int compute_capability() {
    // Machine code says itself what it is for.
    static auto* image = device_code::image();
    static int capability = setting("CUDASIM_CAPABILITY", image ? image->arch : 90);
    return capability;
}

int num_multiprocessors() {
    static int number = setting("CUDASIM_MULTIPROCESSORS", 4);
    return number;
}

int driver_version() {
    static int version = setting("CUDASIM_DRIVER_VERSION", CUDA_VERSION);
    return version;
}

Context& context_at(int device) {
    static auto* all = new std::vector<Context>(kMaxDevices);
    (*all)[device].device = device;
    return (*all)[device];
}

thread_local std::vector<CUcontext> context_stack;

CUcontext handle_of(const Context* context) {
    return context ? CUcontext(uintptr_t(0x100 + 0x10 * context->device)) : nullptr;
}

Context* context_of(CUcontext handle) {
    for (int device = 0; device < num_devices(); device++)
        if (handle_of(&context_at(device)) == handle) return &context_at(device);
    return nullptr;
}

void set_initialized();
void clear_sticky(Context& context);

/// Ends all work of a context and drops all that belongs to it.
static void destroy(Context& context) {
    {
        Guard guard(global);
        end_captures_of(&context);
    }
    wait_for_all(&context);
    Guard guard(global);
    if (context.legacy) context.legacy->close();
    for (auto& [id, stream] : context.per_thread) stream->close();
    for (auto& [handle, stream] : streams.all)
        if (stream->context == &context) stream->close();
    context.legacy = nullptr;
    context.per_thread.clear();
    context.draining.clear();
    streams.remove_of(&context);
    events.remove_of(&context);
    drop_graphs_of(&context);
    drop_modules_of(&context);
    drop_memory_of(&context);
    context.active = false;
    context.retained = 0;
    clear_sticky(context);
}

static bool valid(CUdevice device) { return device >= 0 && device < num_devices(); }

static CUuuid uuid_of(CUdevice device) {
    CUuuid uuid{"cudasim"};
    uuid.bytes[15] = char(device);
    return uuid;
}

}  // namespace cudasim

using namespace cudasim;

#define ENTER_DEVICE(device) \
    ENTER();                 \
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE

API cuInit(unsigned flags) {
    ENTER();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!num_devices()) return CUDA_ERROR_NO_DEVICE;
    set_initialized();
    return CUDA_SUCCESS;
}

API cuDriverGetVersion(int* version) {
    ENTER();
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = driver_version();
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(int* count) {
    ENTER();
    *count = num_devices();
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice* device, int ordinal) {
    ENTER_DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char* name, int size, CUdevice device) {
    ENTER_DEVICE(device);
    snprintf(name, size, "cudasim %d", device);
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    ENTER_DEVICE(device);
    *uuid = uuid_of(device);
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    ENTER_DEVICE(device);
    *uuid = uuid_of(device);
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    ENTER_DEVICE(device);
    *bytes = device_memory();
    return CUDA_SUCCESS;
}

API cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    ENTER_DEVICE(device);
    static const auto& values = *new std::map<int, int>{
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, compute_capability() / 10},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, compute_capability() % 10},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, num_multiprocessors()},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7FFFFFFF},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10},
        {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1 << 10},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
        {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 32 << 20},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
        {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
        {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 512},
        {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
        {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0x7FFFFFFF},
        {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
        {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
        {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    };
    // The rest is a capability that the simulator has not, or a number that nothing asks for.
    auto i = values.find(attribute);
    *value = i == values.end() ? 0 : i->second;
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = device + 1;
    bool known = attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- primary contexts ------------------------------------------------------------------------

API cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
    ENTER_DEVICE(device);
    Guard guard(global);
    Context& context = context_at(device);
    if (!context.active) {
        static uint64_t num_contexts;
        context.active = true;
        context.id = ++num_contexts;
        context.legacy = std::make_shared<Stream>(&context, CU_STREAM_DEFAULT, 0);
    }
    context.retained++;
    *handle = handle_of(&context);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CUresult code = enter(__func__);
    if (!usable()) return code;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    Context& context = context_at(device);
    {
        Guard guard(global);
        if (!context.retained) {
            misuse("primary context of device %d released more often than retained", device);
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (--context.retained) return code;
    }
    destroy(context);
    return code;
}

API cuDevicePrimaryCtxReset_v2(CUdevice device) {
    ENTER_DEVICE(device);
    unsigned retained = context_at(device).retained;
    destroy(context_at(device));
    Guard guard(global);
    context_at(device).retained = retained;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    ENTER_DEVICE(device);
    Guard guard(global);
    *flags = context_at(device).flags;
    *active = context_at(device).active;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    ENTER_DEVICE(device);
    Guard guard(global);
    context_at(device).flags = flags;
    return CUDA_SUCCESS;
}

// ---- the current context ---------------------------------------------------------------------

API cuCtxPushCurrent_v2(CUcontext handle) {
    ENTER();
    if (handle && !context_of(handle)) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack.push_back(handle);
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext* handle) {
    // Popping undoes a push, so it is done whatever is injected.
    CUresult code = enter(__func__);
    if (!usable()) return code;
    if (context_stack.empty()) return code ? code : CUDA_ERROR_INVALID_CONTEXT;
    if (handle) *handle = context_stack.back();
    context_stack.pop_back();
    return code;
}

API cuCtxSetCurrent(CUcontext handle) {
    ENTER();
    if (handle && !context_of(handle)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context_stack.empty()) context_stack.pop_back();
    if (handle) context_stack.push_back(handle);
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext* handle) {
    ENTER();
    *handle = context_stack.empty() ? nullptr : context_stack.back();
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice* device) {
    ENTER_CONTEXT(context, nullptr);
    *device = context->device;
    return CUDA_SUCCESS;
}

API cuCtxGetFlags(unsigned* flags) {
    ENTER_CONTEXT(context, nullptr);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

API cuCtxGetId(CUcontext handle, unsigned long long* id) {
    ENTER();
    Guard guard(global);
    Context* context = context_of(handle);
    if (!context || !context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

API cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
    ENTER();
    if (handle && !context_of(handle)) return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;
    return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    ENTER_CONTEXT(context, nullptr);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

API cuCtxSynchronize() {
    ENTER_CONTEXT(context, nullptr);
    {
        Guard guard(global);
        if (CUresult forbidden = forbidden_of_context(context)) return forbidden;
        if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    }
    wait_for_all(context);
    trim_pools_on_sync(context);
    return CUDA_SUCCESS;
}
