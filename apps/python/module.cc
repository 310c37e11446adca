#include "module.h"

NB_MODULE(_core, m) {
    using namespace heed::python;
    m.attr("__version__") = HEED_VERSION;
    bind_error(m);
    bind_context(m);
    bind_attention(m);
}
