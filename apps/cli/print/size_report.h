#pragma once
#include <heed/sizes.h>

#include <cstdint>
#include <string>
#include <vector>

/// What `heed size` prints.
namespace size_report {

struct Setting {
    std::int64_t context = 0;
    std::int64_t batch = 1;
    std::int64_t groups = 0;  ///< of the GQA column; 0: the library's choice
    std::string dtype;
    std::int64_t bytes = 0;  ///< of one number of that type
};

/// "decoder, 32 layers of 4,096, 32 heads of 128, GQA 8, ...".
std::string description(const heed::ModelShape& model);

/// One model in several kinds of attention: MHA, MQA, GQA, MLA, its own among them.
struct Variant {
    std::string label;
    heed::ModelShape model;
    bool own = false;
};
std::vector<Variant> variants(const heed::ModelShape& model, std::int64_t groups);

std::string to_text(const std::vector<heed::ModelShape>& models, const Setting& setting);
std::string to_json(const std::vector<heed::ModelShape>& models, const Setting& setting);

}  // namespace size_report
