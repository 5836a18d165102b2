// Names and texts of the result codes.

#include "sim.h"

namespace {

struct Text {
    CUresult code;
    const char* name;
    const char* text;
};

#define CODE(name, text) \
    { name, #name, text }

const Text texts[] = {
    CODE(CUDA_SUCCESS, "no error"),
    CODE(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    CODE(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    CODE(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    CODE(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    CODE(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    CODE(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
         "API call is not supported in the installed CUDA driver"),
    CODE(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    CODE(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    CODE(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    CODE(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    CODE(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    CODE(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    CODE(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    CODE(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    CODE(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
         "the provided PTX was compiled with an unsupported toolchain."),
    CODE(CUDA_ERROR_CONTAINED, "Invalid access of peer GPU memory over nvlink or a hardware error"),
    CODE(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    CODE(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    CODE(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    CODE(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    CODE(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    CODE(CUDA_ERROR_NOT_READY, "device not ready"),
    CODE(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    CODE(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    CODE(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    CODE(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    CODE(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    CODE(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    CODE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
         "part or all of the requested memory range is already mapped"),
    CODE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
         "pointer does not correspond to a registered memory region"),
    CODE(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    CODE(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    CODE(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    CODE(CUDA_ERROR_INVALID_ADDRESS_SPACE,
         "operation not supported on global/shared address space"),
    CODE(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    CODE(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    CODE(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory not completely freed"),
    CODE(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    CODE(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    CODE(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    CODE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
         "system has unsupported display driver / cuda driver combination"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
         "operation failed due to a previous error during capture"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_MERGE,
         "operation would result in a merge of separate capture sequences"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
         "capture was not ended in the same stream as it began"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
         "dependency created on uncaptured work in another stream"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
         "operation would make the legacy stream depend on a capturing blocking stream"),
    CODE(CUDA_ERROR_CAPTURED_EVENT,
         "operation not permitted on an event last recorded in a capturing stream"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
         "attempt to terminate a thread-local capture sequence from another thread"),
    CODE(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    CODE(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const Text* find_text(CUresult code) {
    for (auto& text : texts)
        if (text.code == code) return &text;
    return nullptr;
}

}  // namespace

// Looking a code up is part of handling an error, so these two are neither counted nor failed.

API cuGetErrorName(CUresult code, const char** name) {
    auto* text = find_text(code);
    *name = text ? text->name : nullptr;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(CUresult code, const char** string) {
    auto* text = find_text(code);
    *string = text ? text->text : nullptr;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
