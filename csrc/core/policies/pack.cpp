// Runs as many notebooks at the same time as memory allows and as get more done together
// (concurrency_tuner.h); sessions that must share a lane share it fairly.
#include "core/policies/fair.h"
#include "core/policies/policies.h"

namespace gpushare {

constinit const Policy pack{
    .name = "pack",
    .sentence =
        "as many notebooks at once as memory allows and as get more done together; those who "
        "share a lane do so fairly",
    .before = fair_before,
    .ends = Ends::after_quantum,
    .lead = fair_lead,
    .packs = true,
    .boosts = true,
};

}  // namespace gpushare
