#pragma once
/// All of heed.

#include <heed/attention.h>
#include <heed/cache.h>
#include <heed/cache_storage.h>
#include <heed/context.h>
#include <heed/convert_heads.h>
#include <heed/dtype.h>
#include <heed/error.h>
#include <heed/infini_attention.h>
#include <heed/inspect.h>
#include <heed/linear_attention.h>
#include <heed/matmul.h>
#include <heed/merge.h>
#include <heed/mla.h>
#include <heed/pattern.h>
#include <heed/positions.h>
#include <heed/random.h>
#include <heed/safetensors.h>
#include <heed/sizes.h>
#include <heed/tensor.h>
#include <heed/view.h>
