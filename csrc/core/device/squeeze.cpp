#include "core/device/squeeze.h"

#include <cmath>
#include <span>
#include <stdexcept>

namespace gpushare {
namespace {

// All of a session without options.
SqueezeOption whole(const Demand& demand) { return {demand.measured ? demand.ephemeral : 0, 1.0}; }

bool follows(const SqueezeOption& larger, const SqueezeOption& smaller) {
  return smaller.bytes >= 0 && smaller.bytes < larger.bytes && std::isfinite(smaller.slowdown) &&
         smaller.slowdown >= larger.slowdown;
}

}  // namespace

void check_options(const Demand& demand) {
  const auto& options = demand.options;
  if (options.empty()) return;
  if (!demand.measured || options.front() != whole(demand))
    throw std::invalid_argument("the first option must be the measured demand, unsqueezed");
  for (std::size_t i = 1; i < options.size(); ++i)
    if (!follows(options[i - 1], options[i]))
      throw std::invalid_argument("options must have fewer bytes each, and not be faster");
}

SqueezeOption choice(const Demand& demand, Bytes left) {
  const auto& options = demand.options;
  if (options.empty()) return whole(demand);
  const auto fits = [&](const SqueezeOption& option) { return option.bytes <= left; };
  const auto largest = std::ranges::find_if(options, fits);
  return largest == options.end() ? options.back() : *largest;
}

Bytes least_of(const Demand& demand, double slowdown) {
  const auto& options = demand.options;
  const auto is_borne = [&](const SqueezeOption& option) { return option.slowdown <= slowdown; };
  const auto smallest = std::find_if(options.rbegin(), options.rend(), is_borne);
  return smallest == options.rend() ? whole(demand).bytes : smallest->bytes;
}

Bytes floor_of(const Demand& demand) {
  return demand.options.empty() ? whole(demand).bytes : demand.options.back().bytes;
}

Bytes unsqueezed(const Demand& demand) { return whole(demand).bytes; }

std::optional<SqueezeOption> option_of(const Demand& demand, Bytes bytes) {
  const SqueezeOption option = choice(demand, bytes);
  return option.bytes == bytes ? std::optional(option) : std::nullopt;
}

void Squeeze::add(const Demand& demand, double bears, Bytes bytes, bool keeps) {
  const bool has_options = !demand.options.empty();
  const SqueezeOption has = has_options ? choice(demand, left_) : SqueezeOption{bytes, 1.0};
  chosen_ = std::max(chosen_, has.bytes);
  const Bytes borne = has_options ? least_of(demand, std::max(bears, has.slowdown)) : has.bytes;
  least_ = std::max(least_, borne);
  if (keeps) kept_ = std::max(kept_, bytes);
}

bool Squeeze::admits(const Demand& newcomer, bool by_squeezing) const {
  const Bytes needed = std::max(by_squeezing ? least_ : chosen_, floor_of(newcomer));
  return needed <= left_with(newcomer);
}

}  // namespace gpushare
