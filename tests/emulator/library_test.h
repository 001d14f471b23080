/* For the tests of the emulated libraries: arrays on the device. */
#ifndef MNIST_DDP_TESTS_EMULATOR_LIBRARY_TEST_H
#define MNIST_DDP_TESTS_EMULATOR_LIBRARY_TEST_H

#include "checks.h"
#include "cublaslt_product.h"

#include <unistd.h>
#include <vector>

namespace library_test
{

/* A stream of the chosen device, and waiting for it. */
class queue
{
  public:
    explicit queue(int device = 0)
    {
        OK(cudaSetDevice(device));
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }

    ~queue()
    {
        OK(cudaStreamDestroy(stream));
    }

    queue(const queue &) = delete;
    queue &operator=(const queue &) = delete;

    bool is_done() const
    {
        cudaError_t code = cudaStreamQuery(stream);
        EXPECT(code == cudaSuccess || code == cudaErrorNotReady);
        return code == cudaSuccess;
    }

    void wait() const
    {
        while (!is_done())
            usleep(50);
    }

    cudaStream_t stream = nullptr;
};

/* Bytes of device memory, set from and copied to the host's. */
class device_bytes
{
  public:
    device_bytes(const queue &q_, size_t size_bytes_) : q(q_), size_bytes(size_bytes_)
    {
        OK(cudaMalloc(&memory, size_bytes));
        OK(cudaMemsetAsync(memory, 0x5A, size_bytes, q.stream));
        q.wait();
    }

    ~device_bytes()
    {
        OK(cudaFree(memory));
    }

    device_bytes(const device_bytes &) = delete;
    device_bytes &operator=(const device_bytes &) = delete;

    void set(const void *host)
    {
        OK(cudaMemcpyAsync(memory, host, size_bytes, cudaMemcpyHostToDevice, q.stream));
        q.wait();
    }

    void get(void *host) const
    {
        OK(cudaMemcpyAsync(host, memory, size_bytes, cudaMemcpyDeviceToHost, q.stream));
        q.wait();
    }

    void *memory = nullptr;

  private:
    const queue &q;
    size_t size_bytes;
};

/* Numbers on the device in a type of the libraries', as floats on the host. */
class device_floats
{
  public:
    device_floats(const queue &q, cudaDataType_t type_, const std::vector<float> &values)
        : device_floats(q, type_, values.size())
    {
        set(values);
    }

    device_floats(const queue &q, cudaDataType_t type_, size_t count_)
        : type(type_), count(count_), bytes(q, count_ * emulated::element_bytes(type_))
    {
    }

    void set(const std::vector<float> &values)
    {
        std::vector<char> host(count * emulated::element_bytes(type));
        emulated::store_floats(values.data(), count, type, host.data());
        bytes.set(host.data());
    }

    std::vector<float> get() const
    {
        std::vector<char> host(count * emulated::element_bytes(type));
        bytes.get(host.data());
        std::vector<float> values(count);
        emulated::load_floats(host.data(), type, count, values.data());
        return values;
    }

    void *memory() const
    {
        return bytes.memory;
    }

  private:
    cudaDataType_t type;
    size_t count;
    device_bytes bytes;
};

/* Small whole numbers: sums of their products are exact in float, so that we compare bits. */
inline std::vector<float> small_integers(size_t count, unsigned seed)
{
    std::vector<float> values(count);
    for (float &value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<int>(seed >> 24) % 7 - 3);
    }
    return values;
}

/* As `type` would hold it. */
inline float rounded(double value, cudaDataType_t type)
{
    auto number = static_cast<float>(value);
    char room[4];
    emulated::store_floats(&number, 1, type, room);
    emulated::load_floats(room, type, 1, &number);
    return number;
}

} // namespace library_test

#endif
