#include "services/hearthctl/chat/edited_lines.h"

#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"

namespace hearth {
namespace {

constexpr int kHistoryLines = 1000;
// Asks the terminal to mark what is pasted, and to stop that.
constexpr char kMarkPastes[] = "\x1b[?2004h";
constexpr char kMarkNoPastes[] = "\x1b[?2004l";

void Send(const char* sequence) {
  std::fputs(sequence, stdout);
  std::fflush(stdout);
}

}  // namespace

struct EditedLines::Editor {
  std::string prompt;
  KeyReader* keys = nullptr;
  EditLine* line = nullptr;
  History* history = nullptr;
  bool marks_pastes = false;

  static Editor* Of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return static_cast<Editor*>(self);
  }
  static char* Prompt(EditLine* line) { return Of(line)->prompt.data(); }
  // Asks for marks once libedit has the terminal in its mode: who types after them is edited.
  static int GetKey(EditLine* line, wchar_t* key) {
    Editor* const self = Of(line);
    if (!std::exchange(self->marks_pastes, true)) Send(kMarkPastes);
    return self->keys->Next(key) ? 1 : 0;
  }
};

EditedLines::EditedLines(const std::string& prompt, Interrupt* interrupt)
    : keys_(STDIN_FILENO, &pasted_), interrupt_(interrupt), editor_(std::make_unique<Editor>()) {
  // Texts are UTF-8, whatever the environment says.
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) std::setlocale(LC_CTYPE, "");
  editor_->prompt = prompt;
  editor_->keys = &keys_;
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
  // Beside libedit's own: what other programs have on these keys.
  for (const auto& [keys, command] : {std::pair{"^R", "em-inc-search-prev"},
                                      {"\\e[1;5C", "em-next-word"},
                                      {"\\e[1;5D", "ed-prev-word"},
                                      {"\\e[3~", "ed-delete-next-char"}}) {
    el_set(editor_->line, EL_BIND, keys, command, nullptr);
  }
}

EditedLines::~EditedLines() {
  el_end(editor_->line);
  history_end(editor_->history);
}

std::optional<std::string> EditedLines::Next() {
  keys_.Restart();
  interrupt_->SetAction([this] { keys_.Stop(); });
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
  return pasted_.Expand(line);
}

}  // namespace hearth
