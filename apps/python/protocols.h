#pragma once
/// The memory layouts by which Python's array libraries describe their arrays to C: DLPack 1 (with its table of
/// functions for quick exchange) and NumPy's array interface. Field order and meaning are theirs; nothing of theirs is
/// needed to build or to run.

#include <Python.h>

#include <cstdint>

namespace heed::python {

struct DlVersion {
    std::uint32_t major;
    std::uint32_t minor;
};

struct DlDevice {
    std::int32_t type;  ///< 1: CPU
    std::int32_t id;
};

struct DlType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

namespace dl {
constexpr std::int32_t cpu = 1, cuda = 2, cuda_host = 3, rocm_host = 11, cuda_managed = 13;
constexpr std::uint8_t integer = 0, unsigned_integer = 1, floating = 2, bfloat = 4, boolean = 6;
constexpr std::uint64_t read_only = 1;
}  // namespace dl

struct DlTensor {
    void* data;
    DlDevice device;
    std::int32_t rank;
    DlType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  ///< null: row-major
    std::uint64_t byte_offset;
};

/// In a capsule named "dltensor".
struct DlManaged {
    DlTensor tensor;
    void* context;
    void (*deleter)(DlManaged*);
};

/// In a capsule named "dltensor_versioned".
struct DlManagedVersioned {
    DlVersion version;
    void* context;
    void (*deleter)(DlManagedVersioned*);
    std::uint64_t flags;
    DlTensor tensor;
};

/// In a capsule named "dlpack_exchange_api", the attribute __dlpack_c_exchange_api__ of a type.
struct DlExchange {
    DlVersion version;
    DlExchange* previous;
    int (*allocate)(DlTensor* like, DlManagedVersioned** result, void* error,
                    void (*set_error)(void* error, const char* kind, const char* message));
    int (*managed_from_object)(void* object, DlManagedVersioned** result);
    int (*object_from_managed)(DlManagedVersioned* tensor, void** object);
    int (*tensor_from_object)(void* object, DlTensor* result);
    int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

/// The head of NumPy's array object itself, the same in NumPy 1 and 2.
struct NumpyArray {
    PyObject head;
    void* data;
    int rank;
    Py_ssize_t* shape;
    Py_ssize_t* strides;  ///< in bytes
    PyObject* base;
    PyObject* dtype;
    int flags;  ///< ArrayInterface::aligned, writeable
};

/// In a nameless capsule, the attribute __array_struct__ of an array.
struct ArrayInterface {
    int two;  ///< is 2
    int rank;
    char kind;
    int item_size;
    int flags;
    Py_ssize_t* shape;
    Py_ssize_t* strides;  ///< in bytes
    void* data;
    PyObject* description;

    static constexpr int aligned = 0x100, native_order = 0x200, writeable = 0x400;
};

}  // namespace heed::python
