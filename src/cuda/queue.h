#pragma once
/// A stream of a GPU as heed's kernels see it.

#include "base/device_api.h"
#include "cuda/cublas_lt.h"
#include "cuda/sm90/maps.h"

#include <cuda_runtime_api.h>

#include <array>
#include <memory>

namespace heed::cuda {

/// Throws DeviceError with CUDA's own words where `error` is one.
void check(const char* what, cudaError_t error);

/// The device of a call is the current one inside, and the caller's again behind.
class OnDevice {
public:
    explicit OnDevice(int index);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

private:
    int before_ = 0;
    bool changed_ = false;
};

class CudaQueue final : public detail::Queue {
public:
    CudaQueue(Device device, void* stream);
    ~CudaQueue() override;

    void* stream() const override { return stream_; }
    void set_stream(void* stream) override;
    void synchronise() override;
    void* scratch(std::size_t bytes) override;
    /// The operation is queued: scratch memory that belongs to a graph under capture goes back to it.
    void finish_scratch();
    /// Numbers of the host to memory of the device, queued; `from` may go when it returns.
    void upload(void* to, const void* from, std::size_t bytes);
    /// To the host. Waits for everything queued; refused under capture, by CUDA.
    void download(void* to, const void* from, std::size_t bytes);
    void* kept(detail::KeptMemory slot, std::size_t bytes);
    std::size_t scratch_bytes() const override;
    /// Of this queue; null where the library is not found.
    CublasLt* cublas_lt();
    void release() override;

    int device() const { return device_; }
    int multiprocessors() const { return multiprocessors_; }
    /// Ints that are 0 before and after every kernel.
    static constexpr std::int64_t counters_count = 65536;
    int* counters() const { return counters_; }
    sm90::LaunchMemo& memo() { return memo_; }

private:
    bool capturing(cudaStream_t stream) const;

    int device_ = 0;
    int multiprocessors_ = 0;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t order_ = nullptr;  ///< what was queued on the stream before the present one
    void* scratch_ = nullptr;
    std::size_t scratch_bytes_ = 0;
    void* captured_ = nullptr;  ///< scratch memory of the operation that is being captured
    int* counters_ = nullptr;
    struct Kept {
        void* memory = nullptr;
        std::size_t bytes = 0;
    };
    std::array<Kept, static_cast<std::size_t>(detail::KeptMemory::count)> kept_{};
    std::unique_ptr<CublasLt> cublas_lt_;
    sm90::LaunchMemo memo_;
};

/// Of the place of a call on a GPU.
inline CudaQueue& queue_of(detail::Place& place) { return static_cast<CudaQueue&>(*place.queue); }

/// Why the kernels, which are compiled for Hopper alone, cannot run here; null where they can. Of the first GPU:
/// machines with GPUs of several generations say so by name.
const char* missing_hopper();

/// After kernels were launched: what the launch itself reported.
void check_launch(const char* kernel);

}  // namespace heed::cuda
