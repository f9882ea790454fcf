#include "core/device/residency.h"

#include <algorithm>

namespace gpushare {
namespace {

// Bytes a second; a page-out to any disk is faster.
constexpr double kSlowestPageOut = 50e6;

}  // namespace

void Residency::open(Memory& memory, Bytes paged_out_bytes) {
  use(memory);
  memory.paged_out_bytes_ = paged_out_bytes;
  if (paged_out_bytes > 0) move_to(memory, Residence::out);
}

void Residency::vacate(Memory& memory) {
  move_to(memory, Residence::in);
  set_refused(memory, false);
}

// --- out -----------------------------------------------------------------------------------------

void Residency::ask_to_leave(Memory& memory, SessionNumber beneficiary, const std::string& id) {
  ask_to_leave(memory);
  awaits_ = beneficiary;
  memory.evicted_for_ = id;
}

void Residency::let_stay(Memory& memory) {
  if (memory.residence_ == Residence::leaving) move_to(memory, Residence::in);
}

void Residency::refuse(Memory& memory, const std::optional<std::string>& why) {
  let_stay(memory);
  set_refused(memory, true);
  memory.refusal_ = why;
}

void Residency::leave(Memory& memory, Bytes bytes) {
  memory.paged_out_bytes_ = bytes;
  note_rate(memory, bytes);
  if (!memory.is_out()) move_to(memory, Residence::out);
}

// Page-in is assumed to be as fast as page-out.
void Residency::note_rate(const Memory& memory, Bytes bytes) {
  const Seconds took = now_ - memory.asked_to_leave_;
  if (memory.residence_ == Residence::leaving && bytes > 0 && took > 0)
    paging_rate_ = static_cast<double>(bytes) / took;
}

Seconds Residency::leaves_by(const Memory& memory, Bytes persistent, Seconds lease) {
  const auto moving = static_cast<Seconds>(persistent) / kSlowestPageOut;
  return memory.asked_to_leave_ + lease + moving;
}

// --- and back ------------------------------------------------------------------------------------

void Residency::call_back(Memory& memory, const Wait& since) {
  memory.back_ = since;
  move_to(memory, Residence::returning);
}

void Residency::come_in(Memory& memory, const std::string& id) {
  memory.page_in_ = {now_, memory.paged_out_bytes_};
  move_to(memory, Residence::in);
  memory.paged_out_bytes_ = 0;
  use(memory);
  came_in_.push_back(id);
}

std::optional<Seconds> Residency::is_in_by(const Memory& memory) const {
  if (!memory.page_in_) return -kNever;
  const auto moving = takes(memory.page_in_->bytes);
  return moving ? std::optional(memory.page_in_->since + *moving) : std::nullopt;
}

std::optional<Seconds> Residency::takes(Bytes bytes) const {
  if (!paging_rate_) return std::nullopt;
  return static_cast<double>(bytes) / *paging_rate_;
}

// --- counts --------------------------------------------------------------------------------------

// All changes pass here, so that sessions that are out, or asked to page out, are counted.
void Residency::move_to(Memory& memory, Residence residence) {
  const auto count = [&](std::size_t& those, Residence there) {
    those += residence == there;
    those -= memory.residence_ == there;
  };
  count(out_, Residence::out);
  count(leaving_, Residence::leaving);
  if (residence == Residence::leaving) memory.asked_to_leave_ = now_;
  memory.residence_ = residence;
  if (residence == Residence::in) memory.evicted_for_.reset();
}

void Residency::set_refused(Memory& memory, bool refused) {
  refusals_ += refused;
  refusals_ -= std::exchange(memory.refused_, refused);
}

std::string Residency::is_valid(const std::vector<const Memory*>& all) const {
  const auto are = [&](Residence there) {
    return static_cast<std::size_t>(std::ranges::count(all, there, &Memory::residence));
  };
  if (!came_in_.empty()) return "a session has come in and was not told";
  if (are(Residence::leaving) != leaving_)
    return "the sessions that are asked to page out are counted wrong";
  if (are(Residence::out) != out_) return "the sessions that are out are counted wrong";
  if (static_cast<std::size_t>(std::ranges::count_if(all, &Memory::refused)) != refusals_)
    return "the sessions that cannot be paged out are counted wrong";
  const auto is_twice = [](const Memory* memory) {
    return !memory->is_out() && memory->paged_out_bytes() > 0;
  };
  if (std::ranges::any_of(all, is_twice))
    return "a session has its memory on the device and on disk";
  return "";
}

}  // namespace gpushare
