#include "handoff/handoff_token.h"

#include <charconv>
#include <cstddef>

#include "handoff/mac.h"

namespace gpushare {
namespace {

constexpr size_t kHeaderBytes = 4;

// Takes the expected text from the left of a text; is not `ok` any more once something else came.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  Reader& skip(std::string_view expected) {
    ok_ = ok_ && rest_.starts_with(expected);
    if (ok_) rest_.remove_prefix(expected.size());
    return *this;
  }

  Reader& number(uint64_t& value) {
    const char* const end = rest_.data() + rest_.size();
    const auto [after, error] = std::from_chars(rest_.data(), end, value);
    ok_ = ok_ && error == std::errc();
    if (ok_) rest_ = {after, static_cast<size_t>(end - after)};
    return *this;
  }

  // The text up to a quotation mark, which stays. A text with an escape in it was not written by
  // the broker.
  Reader& text(std::string& value) {
    const size_t size = rest_.find_first_of("\"\\");
    ok_ = ok_ && size != std::string_view::npos && rest_[size] == '"';
    if (!ok_) return *this;
    value = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return *this;
  }

  bool ok() const { return ok_; }
  bool is_over() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

// The body of the first frame, which is taken from `frames`; none if the frame is not complete.
std::optional<std::string_view> take_frame(std::string_view& frames) {
  if (frames.size() < kHeaderBytes) return std::nullopt;
  size_t length = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) length = length << 8 | static_cast<uint8_t>(frames[i]);
  if (frames.size() - kHeaderBytes < length) return std::nullopt;
  const std::string_view body = frames.substr(kHeaderBytes, length);
  frames.remove_prefix(kHeaderBytes + length);
  return body;
}

bool is_yield_of(std::string_view body, uint64_t turn, Reader& rest) {
  uint64_t number = 0;
  rest = Reader(body).skip(R"({"type":"Yield","turn":)").number(number);
  return rest.ok() && number == turn;
}

std::optional<Successor> successor_in(Reader rest) {
  Successor named;
  rest.skip(R"(,"successor":{"handoff_slot":")").text(named.handoff_slot);
  rest.skip(R"(","handoff_token":")").text(named.handoff_token).skip(R"("}})");
  return rest.is_over() ? std::optional(std::move(named)) : std::nullopt;
}

}  // namespace

std::optional<Turn> read_handoff_token(std::string_view token, std::string_view key) {
  if (key.empty() || token.size() <= kMacDigits) return std::nullopt;
  const std::string_view numbers = token.substr(kMacDigits + 1);
  if (!is_same(token.substr(0, kMacDigits), mac(key, numbers))) return std::nullopt;
  Turn turn{};
  Reader rest(token.substr(kMacDigits));
  for (uint64_t* number : {&turn.number, &turn.lane, &turn.bytes, &turn.memory, &turn.chunks})
    rest.skip(" ").number(*number);
  if (rest.is_over()) return turn;
  uint64_t end = 0;
  rest.skip(" ").number(end);
  if (!rest.is_over() || end > 1) return std::nullopt;
  turn.end = static_cast<int>(end);
  return turn;
}

std::optional<Successor> find_successor(std::string_view frames, uint64_t turn) {
  std::optional<Successor> newest;
  Reader rest("");
  while (const auto body = take_frame(frames))
    if (is_yield_of(*body, turn, rest)) newest = successor_in(rest);
  return newest;
}

bool has_yield(std::string_view frames, uint64_t turn) {
  Reader rest("");
  while (const auto body = take_frame(frames))
    if (is_yield_of(*body, turn, rest)) return true;
  return false;
}

}  // namespace gpushare
