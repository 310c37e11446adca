#include <heed/train.h>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "array.h"
#include "context.h"
#include "ids.h"
#include "keywords.h"
#include "module.h"

namespace heed::python {

namespace {

/// A batch keeps its ids in i64.
Tensor wide_ids(const char* argument, const View& view) {
    if (!view) { return {}; }
    if (view.dtype() != DType::i64 && view.dtype() != DType::i32) {
        refuse("Learner.step", argument, "int64 or int32", std::string(name_of(view.dtype())));
    }
    Tensor copy = Tensor::copy_of(view);
    if (copy.dtype() == DType::i64) { return copy; }
    Tensor wide(DType::i64, view.shape());
    for (std::int64_t i = 0; i < copy.elements(); ++i) { wide.as<std::int64_t>()[i] = copy.as<std::int32_t>()[i]; }
    return wide;
}

Tensor mask_of(const View& view) {
    if (!view) { return {}; }
    const DType type = view.dtype();
    const bool bytes = type == DType::u8 || type == DType::boolean;
    if (!bytes && type != DType::i64 && type != DType::i32) {
        refuse("Learner.step", "attention_mask", "bool, uint8, int32 or int64", std::string(name_of(type)));
    }
    const Tensor copy = bytes ? Tensor::copy_of(view) : wide_ids("attention_mask", view);
    Tensor mask(DType::u8, view.shape());
    for (std::int64_t i = 0; i < copy.elements(); ++i) {
        const bool there = bytes ? static_cast<const std::uint8_t*>(copy.data())[i] != 0
                                 : static_cast<const std::int64_t*>(copy.data())[i] != 0;
        mask.as<std::uint8_t>()[i] = there ? 1 : 0;
    }
    return mask;
}

nb::dict step_(Learner& learner, nb::handle input_ids, nb::handle labels, nb::handle attention_mask,
               nb::handle cu_seqlens) {
    const Ids ids("Learner.step", "input_ids", input_ids);
    const Ids targets("Learner.step", "labels", labels.is_none() ? input_ids : labels);
    const Ids mask("Learner.step", "attention_mask", attention_mask);
    const Ids bounds("Learner.step", "cu_seqlens", cu_seqlens);
    TrainBatch batch;
    batch.input_ids = wide_ids("input_ids", ids.view());
    batch.labels = wide_ids("labels", targets.view());
    batch.attention_mask = mask_of(mask.view());
    if (const View seen = bounds.view()) {
        batch.cu_seqlens = Tensor(DType::i64, {seen.shape().elements()});
        const Tensor wide = wide_ids("cu_seqlens", seen);
        std::copy_n(wide.as<std::int64_t>(), wide.elements(), batch.cu_seqlens.as<std::int64_t>());
    }
    StepReport report;
    without_gil([&] {
        const Guard guard({&learner.model().parameters()});
        report = learner.step(batch);
    });
    nb::dict result;
    result["step"] = report.step;
    result["loss"] = report.loss;
    result["gradient_norm"] = report.gradient_norm;
    result["learning_rate"] = report.learning_rate;
    result["skipped"] = report.skipped;
    return result;
}

}  // namespace

void bind_train(nb::module_& m) {
    nb::class_<Learner>(m, "Learner",
                        R"doc(A model and its optimiser: training steps on batches of one's own.

Options by name, as in the "train" part of a run's file (docs/train.md): learning_rate, schedule, steps, warmup, clip,
accumulate, dtype ("bf16" computes in bf16 with f32 master weights), weight_decay, ... The weights are the model's:
Model.state_dict, Model.save and Model.forward see each step's.

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> model = heed.Model(config, seed=1)
>>> learner = heed.Learner(model, learning_rate=0.01, warmup=0, schedule="constant")
>>> losses = [learner.step([[1, 2, 3, 4, 1, 2, 3, 4]])["loss"] for _ in range(20)]
>>> losses[-1] < losses[0]
True)doc")
        .def(
            "__init__",
            [](Learner* self, const Model& model, nb::handle context, const nb::kwargs& options) {
                const nb::object json = nb::module_::import_("json").attr("dumps")(options);
                const TrainOptions read = read_train_options(nb::cast<std::string>(json));
                new (self) Learner(choose_model_context("Learner", context, model.device()), model, read);
            },
            nb::arg("model"), nb::arg("context") = nb::none(), nb::arg("options"), nb::keep_alive<1, 3>(),
            nb::sig("def __init__(self, model: Model, context: Any = None, **options: Any) -> None"))
        .def(
            "step", step_, nb::arg("input_ids"), nb::arg("labels") = nb::none(), nb::arg("attention_mask") = nb::none(),
            nb::arg("cu_seqlens") = nb::none(),
            nb::sig("def step(self, input_ids: Any, labels: Any = None, attention_mask: Any = None, "
                    "cu_seqlens: Any = None) -> dict[str, Any]"),
            R"doc(Forward, backward and update on one batch; returns step, loss, gradient_norm, learning_rate and skipped
(gradients were not finite: nothing was changed).

labels as in Model.gradients. cu_seqlens [N+1]: input_ids is one row in which N documents lie end to end, and none of
them sees another; give -100 as the label of the first token of each.

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> learner = heed.Learner(heed.Model(config))
>>> learner.step([[1, 2, 3, 4, 5]], labels=[[-100, 2, -100, 4, 5]], cu_seqlens=[0, 2, 5])["step"]
1)doc")
        .def(
            "save", [](const Learner& learner, const std::filesystem::path& file) { learner.save(file); },
            nb::arg("file"), nb::sig("def save(self, file: str | os.PathLike[str]) -> None"),
            "Weights, moments and counts in one file: everything that the next step depends on.")
        .def(
            "resume", [](Learner& learner, const std::filesystem::path& file) { learner.resume(file); },
            nb::arg("file"), nb::sig("def resume(self, file: str | os.PathLike[str]) -> None"),
            "Takes up what save wrote: the next step gives the same bits as it would have there.")
        .def_prop_ro("steps", &Learner::steps, "Steps done, skipped ones among them.")
        .def_prop_ro("skipped", &Learner::skipped, "Steps that changed nothing, as their gradients were not finite.");
}

}  // namespace heed::python
