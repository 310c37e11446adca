#pragma once
/// CacheConfig, CachePool and Cache as Python classes (cache.h has too much for one file).

#include <heed/cache.h>
#include <nanobind/nanobind.h>

namespace heed::python {

void bind_cache_types(nanobind::module_& m);

}  // namespace heed::python
