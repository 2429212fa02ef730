#include "services/hearthctl/chat/key_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace hearth {
namespace {

constexpr absl::string_view kPasteBegin = "\x1b[200~";
constexpr absl::string_view kPasteEnd = "\x1b[201~";
// The rest of a key's bytes comes with the first, or soon.
constexpr int kRestOfKeyMs = 50;

size_t Utf8Length(unsigned char first) {
  if (first < 0xc0) return 1;
  if (first < 0xe0) return 2;
  return first < 0xf0 ? 3 : 4;
}

}  // namespace

KeyReader::KeyReader(int terminal, PastedTexts* pasted) : terminal_(terminal), pasted_(pasted) {
  const int made = ::pipe2(stop_, O_CLOEXEC | O_NONBLOCK);
  assert(made == 0);
  static_cast<void>(made);
}

KeyReader::~KeyReader() {
  for (const int file : stop_) ::close(file);
}

void KeyReader::Stop() {
  const ssize_t written = ::write(stop_[1], "x", 1);
  static_cast<void>(written);  // full: it is stopped already
}

void KeyReader::Restart() {
  char byte = 0;
  while (::read(stop_[0], &byte, 1) > 0) {
  }
}

bool KeyReader::ReadMore(int wait_ms) {
  pollfd files[] = {{terminal_, POLLIN, 0}, {stop_[0], POLLIN, 0}};
  int ready = 0;
  do {
    ready = ::poll(files, 2, wait_ms);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0 || files[1].revents != 0) return false;
  char piece[4096];
  const ssize_t count = ::read(terminal_, piece, sizeof(piece));
  if (count <= 0) return false;
  bytes_.append(piece, static_cast<size_t>(count));
  return true;
}

// Puts what the line shows in place of the paste at the beginning of `bytes_`.
bool KeyReader::TakePaste() {
  const std::string mark(kPasteEnd);
  size_t end = 0, searched = kPasteBegin.size();
  bool is_too_long = false;
  while ((end = bytes_.find(mark, searched)) == std::string::npos) {
    // What ends the bytes may begin the mark. The paste's beginning is as long.
    searched = std::max(kPasteBegin.size(), bytes_.size() - mark.size());
    if (searched - kPasteBegin.size() > kMaxPasteBytes) {
      is_too_long = true;
      bytes_.erase(kPasteBegin.size(), searched - kPasteBegin.size());
      searched = kPasteBegin.size();
    }
    if (!ReadMore(-1)) return false;
  }
  const size_t length = end - kPasteBegin.size();
  is_too_long = is_too_long || length > kMaxPasteBytes;
  const std::string shown =
      is_too_long
          ? pasted_->LeaveOut(absl::StrCat("a paste of more than ", kMaxPasteBytes >> 20, " MiB"))
          : pasted_->Add(bytes_.substr(kPasteBegin.size(), length));
  bytes_.replace(0, end + mark.size(), shown);
  return true;
}

bool KeyReader::Next(wchar_t* character) {
  for (;;) {
    if (bytes_.empty() && !ReadMore(-1)) return false;
    while (bytes_.size() < kPasteBegin.size() && absl::StartsWith(kPasteBegin, bytes_) &&
           ReadMore(kRestOfKeyMs)) {
    }
    if (!absl::StartsWith(bytes_, kPasteBegin)) return TakeCharacter(character);
    if (!TakePaste()) return false;
    if (!bytes_.empty()) return TakeCharacter(character);
  }
}

bool KeyReader::TakeCharacter(wchar_t* character) {
  const size_t length = Utf8Length(static_cast<unsigned char>(bytes_[0]));
  while (bytes_.size() < length && ReadMore(kRestOfKeyMs)) {
  }
  const unsigned char first = static_cast<unsigned char>(bytes_[0]);
  uint32_t code = length == 1 ? first : first & (0xffU >> (length + 1));
  for (size_t i = 1; i < length && i < bytes_.size(); ++i) {
    code = code << 6 | (static_cast<unsigned char>(bytes_[i]) & 0x3fU);
  }
  bytes_.erase(0, length);
  *character = static_cast<wchar_t>(code);
  return true;
}

}  // namespace hearth
