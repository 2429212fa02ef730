#include "services/hearthctl/edited_lines.h"

#include <histedit.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "services/hearthctl/chat_file.h"

namespace hearth {
namespace {

constexpr int kHistoryLines = 1000;
// Control sequences that turn bracketed paste on and off. While it is on, the terminal marks the
// start and end of pasted text.
constexpr char kMarkPastes[] = "\x1b[?2004h";
constexpr char kMarkNoPastes[] = "\x1b[?2004l";
constexpr absl::string_view kPasteEnd = "\x1b[201~";

void Send(const char* sequence) {
  std::fputs(sequence, stdout);
  std::fflush(stdout);
}

// Returns the text to insert into the line for a paste.
std::string Insertion(std::string paste, bool is_too_long) {
  if (is_too_long) {
    return absl::StrCat("[a paste of more than ", EditedLines::kMaxPasteBytes >> 20,
                        " MiB was ignored]");
  }
  if (!CheckUtf8(paste, "").ok()) return "[a paste that is not UTF-8 was ignored]";
  paste.erase(std::remove(paste.begin(), paste.end(), '\0'), paste.end());
  // In a paste, terminals send a carriage return for a line end, like the Return key.
  return absl::StrReplaceAll(paste, {{"\r\n", "\n"}, {"\r", "\n"}});
}

}  // namespace

struct EditedLines::Editor {
  std::string prompt;
  EditLine* line = nullptr;
  History* history = nullptr;
  bool marks_pastes = false;
  const int stopped = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

  static Editor* Of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return static_cast<Editor*>(self);
  }
  static char* Prompt(EditLine* line) { return Of(line)->prompt.data(); }
  // Waits until standard input has a byte. Returns false if Ctrl-C was pressed first.
  bool Wait() const {
    pollfd files[] = {{STDIN_FILENO, POLLIN, 0}, {stopped, POLLIN, 0}};
    while (::poll(files, 2, -1) < 0 && errno == EINTR) {
    }
    return files[1].revents == 0;
  }
  // Reads a key: waits for input, then calls libedit's reader. Turns bracketed paste on at the
  // first key, because libedit has set the terminal's mode by that time.
  static int GetKey(EditLine* line, wchar_t* key) {
    Editor* const self = Of(line);
    if (!std::exchange(self->marks_pastes, true)) Send(kMarkPastes);
    if (!self->Wait()) return 0;
    el_set(line, EL_GETCFN, EL_BUILTIN_GETCFN);
    const int count = el_wgetc(line, key);
    el_set(line, EL_GETCFN, &Editor::GetKey);
    return count;
  }
  // Inserts pasted text into the line. libedit calls it when the terminal marks the start of a
  // paste.
  static unsigned char TakePaste(EditLine* line, int /*key*/) {
    std::string paste;
    bool is_too_long = false;
    while (!absl::EndsWith(paste, kPasteEnd)) {
      char byte = 0;
      if (!Of(line)->Wait() || ::read(STDIN_FILENO, &byte, 1) != 1) return CC_EOF;
      paste += byte;
      if (paste.size() <= kMaxPasteBytes + kPasteEnd.size()) continue;
      is_too_long = true;
      paste.erase(0, kMaxPasteBytes);
    }
    paste.resize(paste.size() - kPasteEnd.size());
    return el_insertstr(line, Insertion(std::move(paste), is_too_long).c_str()) == 0
               ? CC_REFRESH
               : CC_REFRESH_BEEP;
  }
};

EditedLines::EditedLines(const std::string& prompt, Interrupt* interrupt)
    : interrupt_(interrupt), editor_(std::make_unique<Editor>()) {
  assert(editor_->stopped >= 0);
  // Input is UTF-8, whatever locale the environment variables name.
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) std::setlocale(LC_CTYPE, "");
  editor_->prompt = prompt;
  editor_->history = history_init();
  HistEvent event;
  history(editor_->history, &event, H_SETSIZE, kHistoryLines);
  history(editor_->history, &event, H_SETUNIQUE, 1);
  editor_->line = el_init("hearthctl", stdin, stdout, stderr);
  el_set(editor_->line, EL_CLIENTDATA, editor_.get());
  el_set(editor_->line, EL_PROMPT, &Editor::Prompt);
  el_set(editor_->line, EL_EDITOR, "emacs");
  el_set(editor_->line, EL_SIGNAL, 0);
  el_set(editor_->line, EL_HIST, history, editor_->history);
  el_set(editor_->line, EL_GETCFN, &Editor::GetKey);
  el_set(editor_->line, EL_ADDFN, "take-paste", "Inserts what is pasted", &Editor::TakePaste);
  // Bind keys that other line editors have and libedit does not.
  for (const auto& [keys, command] : {std::pair{"^R", "em-inc-search-prev"},
                                      {"\\e[1;5C", "em-next-word"},
                                      {"\\e[1;5D", "ed-prev-word"},
                                      {"\\e[3~", "ed-delete-next-char"},
                                      {"\\e[200~", "take-paste"}}) {
    el_set(editor_->line, EL_BIND, keys, command, nullptr);
  }
}

EditedLines::~EditedLines() {
  el_end(editor_->line);
  history_end(editor_->history);
  ::close(editor_->stopped);
}

std::optional<std::string> EditedLines::Next() {
  eventfd_t before = 0;
  eventfd_read(editor_->stopped, &before);
  interrupt_->SetAction([this] { eventfd_write(editor_->stopped, 1); });
  el_resize(editor_->line);
  editor_->marks_pastes = false;
  int count = 0;
  const char* read = el_gets(editor_->line, &count);
  Send(kMarkNoPastes);
  interrupt_->SetAction(nullptr);
  if (read == nullptr || count <= 0) return std::nullopt;
  const std::string line(absl::StripAsciiWhitespace(std::string(read, count)));
  HistEvent event;
  if (!line.empty()) history(editor_->history, &event, H_ENTER, line.c_str());
  return line;
}

}  // namespace hearth
