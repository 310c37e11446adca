/// Devices, streams and memory: what base/device_api.h asks of CUDA.

#include <heed/error.h>

#include "base/refuse.h"
#include "cuda/attention_any.h"
#include "cuda/queue.h"

#include <algorithm>
#include <string>

namespace heed::cuda {

void check(const char* what, cudaError_t error) {
    if (error == cudaSuccess) { return; }
    (void)cudaGetLastError();  // an error that was reported is not reported again
    throw DeviceError(std::string(what) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")");
}

const char* missing_hopper() {
    int major = 0;
    if (detail::gpu_count() == 0) { return "this machine has no GPU"; }
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
        return "the GPU is not of the Hopper generation";
    }
    return nullptr;
}

void check_launch(const char* kernel) { check(kernel, cudaGetLastError()); }

OnDevice::OnDevice(int index) {
    check("cudaGetDevice", cudaGetDevice(&before_));
    if (before_ != index) {
        check("cudaSetDevice", cudaSetDevice(index));
        changed_ = true;
    }
}
OnDevice::~OnDevice() {
    if (changed_) { (void)cudaSetDevice(before_); }
}

CudaQueue::CudaQueue(Device device, void* stream) : device_(device.index), stream_(static_cast<cudaStream_t>(stream)) {
    const OnDevice on(device_);
    check("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_));
    check("cudaEventCreate", cudaEventCreateWithFlags(&order_, cudaEventDisableTiming));
    check("cudaMalloc", cudaMalloc(reinterpret_cast<void**>(&counters_), counters_count * sizeof(int)));
    check("cudaMemset", cudaMemset(counters_, 0, counters_count * sizeof(int)));
    check("cudaDeviceSynchronize", cudaDeviceSynchronize());
}

CudaQueue::~CudaQueue() {
    try {
        const OnDevice on(device_);
        if (scratch_ != nullptr) { (void)cudaFreeAsync(scratch_, stream_); }
        for (const Kept& each : kept_) {
            if (each.memory != nullptr) { (void)cudaFreeAsync(each.memory, stream_); }
        }
        (void)cudaStreamSynchronize(stream_);
        cublas_lt_.reset();
        (void)cudaFree(counters_);
        (void)cudaEventDestroy(order_);
    } catch (const DeviceError&) {  // a device that is lost has nothing left to free
    }
}

void CudaQueue::set_stream(void* stream) {
    const auto next = static_cast<cudaStream_t>(stream);
    if (next == stream_) { return; }
    const OnDevice on(device_);
    // Scratch memory and counters go over to the new stream, so it waits for what the old one still does with them. A
    // stream under capture takes no part in that: a graph has scratch memory of its own.
    if (!capturing(stream_) && !capturing(next) && cudaEventRecord(order_, stream_) == cudaSuccess) {
        check("cudaStreamWaitEvent", cudaStreamWaitEvent(next, order_, 0));
    }
    (void)cudaGetLastError();  // a stream that is gone has nothing to wait for
    stream_ = next;
}

void CudaQueue::synchronise() {
    const OnDevice on(device_);
    check("cudaStreamSynchronize", cudaStreamSynchronize(stream_));
}

bool CudaQueue::capturing(cudaStream_t stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) { (void)cudaGetLastError(); }
    return status != cudaStreamCaptureStatusNone;
}

void* CudaQueue::scratch(std::size_t bytes) {
    if (capturing(stream_)) {
        // Memory that the graph itself takes and gives back in every replay.
        finish_scratch();
        check("cudaMallocAsync", cudaMallocAsync(&captured_, bytes, stream_));
        return captured_;
    }
    if (bytes > scratch_bytes_) {
        const OnDevice on(device_);
        void* larger = nullptr;
        const std::size_t rounded = (bytes + 0xFFFFF) / 0x100000 * 0x100000;
        check("cudaMallocAsync", cudaMallocAsync(&larger, rounded, stream_));
        if (scratch_ != nullptr) { check("cudaFreeAsync", cudaFreeAsync(scratch_, stream_)); }
        scratch_ = larger;
        scratch_bytes_ = rounded;
    }
    return scratch_;
}

void CudaQueue::upload(void* to, const void* from, std::size_t bytes) {
    // As parameters of kernels, which a graph keeps; long lists take the copy engine instead.
    constexpr std::size_t by_parameters = 32768;
    if (bytes <= by_parameters || capturing(stream_)) {
        launch_upload(stream_, to, from, static_cast<std::int64_t>(bytes));
        return;
    }
    check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
}

void CudaQueue::download(void* to, const void* from, std::size_t bytes) {
    check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    check("cudaStreamSynchronize", cudaStreamSynchronize(stream_));
}

void* CudaQueue::kept(detail::KeptMemory slot, std::size_t bytes) {
    Kept& each = kept_[static_cast<std::size_t>(slot)];
    if (bytes <= each.bytes && each.memory != nullptr) { return each.memory; }
    const OnDevice on(device_);
    // A quarter more than is asked for: caches grow from step to step.
    const std::size_t rounded = (bytes + bytes / 4 + 0xFFFFF) / 0x100000 * 0x100000;
    void* larger = nullptr;
    check("cudaMallocAsync", cudaMallocAsync(&larger, rounded > 0 ? rounded : 1, stream_));
    if (each.memory != nullptr) { check("cudaFreeAsync", cudaFreeAsync(each.memory, stream_)); }
    each = {larger, rounded};
    return each.memory;
}

std::size_t CudaQueue::scratch_bytes() const {
    std::size_t sum = scratch_bytes_;
    for (const Kept& each : kept_) { sum += each.bytes; }
    return sum;
}

CublasLt* CudaQueue::cublas_lt() {
    if (!cublas_lt_ && cublas_lt_found()) { cublas_lt_ = make_cublas_lt(); }
    return cublas_lt_.get();
}

void CudaQueue::finish_scratch() {
    if (captured_ == nullptr) { return; }
    (void)cudaFreeAsync(captured_, stream_);
    captured_ = nullptr;
}

void CudaQueue::release() {
    const OnDevice on(device_);
    for (Kept& each : kept_) {
        if (each.memory != nullptr) { check("cudaFreeAsync", cudaFreeAsync(each.memory, stream_)); }
        each = {};
    }
    if (scratch_ == nullptr) { return; }
    check("cudaFreeAsync", cudaFreeAsync(scratch_, stream_));
    scratch_ = nullptr;
    scratch_bytes_ = 0;
}

}  // namespace heed::cuda

namespace heed::detail {
namespace {

void expect_device(const char* function, Device device) {
    const int count = gpu_count();
    if (device.index >= 0 && device.index < count) { return; }
    refuse(std::string(function), "device", "one of " + std::to_string(count) + " GPUs that this machine has",
           to_string(device));
}

}  // namespace

int gpu_count() noexcept {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) { return count; }
    (void)cudaGetLastError();
    return 0;
}

std::unique_ptr<Queue> make_queue(const char* function, Device device, void* stream) {
    expect_device(function, device);
    return std::make_unique<cuda::CudaQueue>(device, stream);
}

void* allocate_on(const char* function, Device device, std::size_t bytes) {
    expect_device(function, device);
    const cuda::OnDevice on(device.index);
    void* memory = nullptr;
    cuda::check("cudaMalloc", cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)));
    return memory;
}

void free_on(Device device, void* memory) noexcept {
    try {
        const cuda::OnDevice on(device.index);
        (void)cudaFree(memory);
    } catch (const DeviceError&) {  // a device that is lost has nothing left to free
    }
}

void clear_on(Device device, void* memory, std::size_t bytes) {
    const cuda::OnDevice on(device.index);
    cuda::check("cudaMemset", cudaMemset(memory, 0, bytes));
    cuda::check("cudaStreamSynchronize", cudaStreamSynchronize(nullptr));
}

void* kept_on(Queue& queue, KeptMemory slot, std::size_t bytes) {
    return static_cast<cuda::CudaQueue&>(queue).kept(slot, bytes);
}

void copy_on(const DeviceCopy& copy, Queue* queue) {
    if (copy.bytes == 0) { return; }
    const Device device = copy.to_device.kind == DeviceKind::cuda ? copy.to_device : copy.from_device;
    const cuda::OnDevice on(device.index);
    if (queue != nullptr) {
        const auto stream = static_cast<cudaStream_t>(queue->stream());
        cuda::check("cudaMemcpyAsync", cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, stream));
    } else {
        // What is queued on other streams may still write there.
        if (copy.from_device == copy.to_device) { cuda::check("cudaDeviceSynchronize", cudaDeviceSynchronize()); }
        cuda::check("cudaMemcpy", cudaMemcpy(copy.to, copy.from, copy.bytes, cudaMemcpyDefault));
        if (copy.from_device == copy.to_device) {
            cuda::check("cudaStreamSynchronize", cudaStreamSynchronize(nullptr));
        }
    }
}

}  // namespace heed::detail
