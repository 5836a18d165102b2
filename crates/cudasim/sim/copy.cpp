// Copies and memsets, checked against the memory table.

#include "sim.h"

namespace cudasim {

enum class Side { host, device, any };

/// A rectangle of bytes on one side of a copy; a plain copy has one row.
struct Rows {
    uintptr_t p;
    size_t pitch;
    Side side;

    size_t extent(size_t width, size_t height) const { return (height - 1) * pitch + width; }
};

static void copy_rows(uintptr_t dst, size_t dst_pitch, uintptr_t src, size_t src_pitch,
                      size_t width, size_t height) {
    for (size_t row = 0; row < height; row++)
        memmove((void*)(dst + row * dst_pitch), (const void*)(src + row * src_pitch), width);
}

/// A device side must be in one allocation. Elsewhere memory that the table does not know is
/// pageable host memory, of which nothing can be checked.
static CUresult check(const Rows& rows, size_t extent, bool& pageable) {
    pageable = rows.side != Side::device && !find_memory(rows.p);
    if (pageable) return rows.p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return in_one_allocation(rows.p, extent) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// The time at which memory is read: pageable memory is staged at the call, as the driver does it for a copy of its
/// own, and a pageable destination makes the call synchronous. Pinned memory is read when the copy runs. A captured
/// copy keeps the addresses, whatever the memory.
static CUresult copy(Rows dst, Rows src, size_t width, size_t height, CUstream handle,
                     bool synchronous, Context* context) {
    Guard guard(global);
    StreamPtr stream;
    if (CUresult unknown = find_stream(handle, context, stream)) return unknown;
    if (synchronous)
        if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    if (!width || !height) return CUDA_SUCCESS;
    bool to_pageable, from_pageable;
    if (CUresult wrong = check(dst, dst.extent(width, height), to_pageable)) return wrong;
    if (CUresult wrong = check(src, src.extent(width, height), from_pageable)) return wrong;

    Operation operation;
    if (from_pageable && !stream->capture) {
        auto staged = std::make_shared<std::vector<char>>(width * height);
        copy_rows(uintptr_t(staged->data()), width, src.p, src.pitch, width, height);
        operation = [=] {
            copy_rows(dst.p, dst.pitch, uintptr_t(staged->data()), width, width, height);
        };
    } else {
        operation = [=] { copy_rows(dst.p, dst.pitch, src.p, src.pitch, width, height); };
    }
    Ticket ticket;
    if (CUresult failed = submit(stream, operation, &ticket)) return failed;
    guard.unlock();
    if (synchronous || to_pageable) ticket.wait();
    return CUDA_SUCCESS;
}

static CUresult copy(CUdeviceptr dst, Side dst_side, CUdeviceptr src, Side src_side, size_t size,
                     CUstream handle, bool synchronous, Context* context) {
    Rows to{dst, size, dst_side}, from{src, size, src_side};
    return copy(to, from, size, 1, handle, synchronous, context);
}

template <class T>
static CUresult fill(CUdeviceptr p, T value, size_t count, CUstream handle, bool synchronous,
                     Context* context) {
    Guard guard(global);
    StreamPtr stream;
    if (CUresult unknown = find_stream(handle, context, stream)) return unknown;
    if (synchronous)
        if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    if (p % sizeof(T) || count > SIZE_MAX / sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
    if (!count) return CUDA_SUCCESS;
    if (!in_one_allocation(p, count * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, [=] { std::fill_n((T*)p, count, value); });
}

}  // namespace cudasim

using namespace cudasim;

API cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    ENTER_CONTEXT(context, nullptr);
    return copy(dst, Side::any, src, Side::any, size, nullptr, true, context);
}

API cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t size) {
    ENTER_CONTEXT(context, nullptr);
    return copy(dst, Side::device, CUdeviceptr(src), Side::host, size, nullptr, true, context);
}

API cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t size) {
    ENTER_CONTEXT(context, nullptr);
    return copy(CUdeviceptr(dst), Side::host, src, Side::device, size, nullptr, true, context);
}

/// The copy is not synchronous to the host, in spite of the call's name.
API cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    ENTER_CONTEXT(context, nullptr);
    return copy(dst, Side::device, src, Side::device, size, nullptr, false, context);
}

API cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    return copy(dst, Side::any, src, Side::any, size, stream, false, context);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t size, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    return copy(dst, Side::device, CUdeviceptr(src), Side::host, size, stream, false, context);
}

API cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t size, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    return copy(CUdeviceptr(dst), Side::host, src, Side::device, size, stream, false, context);
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    return copy(dst, Side::device, src, Side::device, size, stream, false, context);
}

static CUresult rows_of(Rows& rows, CUmemorytype type, const void* host, CUdeviceptr device,
                        size_t pitch, size_t x, size_t y, const CUDA_MEMCPY2D& copy) {
    switch (type) {
        case CU_MEMORYTYPE_HOST: rows = {uintptr_t(host), pitch, Side::host}; break;
        case CU_MEMORYTYPE_DEVICE: rows = {device, pitch, Side::device}; break;
        case CU_MEMORYTYPE_UNIFIED: rows = {device, pitch, Side::any}; break;
        default: return CUDA_ERROR_NOT_SUPPORTED;  // arrays
    }
    bool one_row = copy.Height <= 1 && !pitch && !y;
    if (!one_row && pitch < copy.WidthInBytes + x) return CUDA_ERROR_INVALID_VALUE;
    rows.p += y * pitch + x;
    return CUDA_SUCCESS;
}

API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* c, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    Rows dst, src;
    if (CUresult wrong = rows_of(dst, c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch,
                                 c->dstXInBytes, c->dstY, *c))
        return wrong;
    if (CUresult wrong = rows_of(src, c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch,
                                 c->srcXInBytes, c->srcY, *c))
        return wrong;
    return copy(dst, src, c->WidthInBytes, c->Height, stream, false, context);
}

/// The copies of a batch run in any order. Each source is read when its attributes allow it, at the
/// worst of the allowed times: drawn by lot for ANY.
API cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                          CUmemcpyAttributes* attributes, size_t* first_copies,
                          size_t num_attributes, CUstream handle) {
    ENTER_CONTEXT(context, handle);
    Guard guard(global);
    StreamPtr stream;
    if (CUresult unknown = find_stream(handle, context, stream)) return unknown;
    if (!dsts || !srcs || !sizes || !count || !attributes || !first_copies || !num_attributes ||
        num_attributes > count || first_copies[0])
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == context->legacy) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult forbidden = forbidden_on(stream)) return forbidden;

    static Random random;
    std::vector<Operation> copies;
    bool blocks = false;
    for (size_t i = 0, a = 0; i < count; i++) {
        while (a + 1 < num_attributes && first_copies[a + 1] <= i) a++;
        auto order = attributes[a].srcAccessOrder;
        if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
            return CUDA_ERROR_INVALID_VALUE;
        uintptr_t dst = dsts[i], src = srcs[i];
        size_t size = sizes[i];
        bool to_pageable, from_pageable;
        if (!size || check({dst, size, Side::any}, size, to_pageable) ||
            check({src, size, Side::any}, size, from_pageable))
            return CUDA_ERROR_INVALID_VALUE;
        bool now = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
                   (order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY && random() & 1);
        auto* memory = find_memory(src);
        if (now && (!memory || memory->on_host())) {
            auto staged = std::make_shared<std::vector<char>>((char*)src, (char*)src + size);
            copies.push_back([=] { memcpy((void*)dst, staged->data(), size); });
        } else {
            copies.push_back([=] { memcpy((void*)dst, (void*)src, size); });
        }
        blocks |= to_pageable;
    }
    std::shuffle(copies.begin(), copies.end(), random);
    Ticket ticket;
    CUresult failed = submit(stream, [copies] { for (auto& copy : copies) copy(); }, &ticket);
    if (failed) return failed;
    guard.unlock();
    if (blocks) ticket.wait();
    return CUDA_SUCCESS;
}

API cuMemsetD8_v2(CUdeviceptr p, unsigned char value, size_t count) {
    ENTER_CONTEXT(context, nullptr);
    return fill(p, value, count, nullptr, true, context);
}

API cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t count, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    return fill(p, value, count, stream, false, context);
}

API cuMemsetD16Async(CUdeviceptr p, unsigned short value, size_t count, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    return fill(p, value, count, stream, false, context);
}

API cuMemsetD32Async(CUdeviceptr p, unsigned value, size_t count, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    return fill(p, value, count, stream, false, context);
}
