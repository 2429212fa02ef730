// The commands completion, man and reference, which print pages about hearthctl itself.
#include <string>

#include "services/hearthctl/commands.h"

namespace hearth {
namespace {

constexpr char kCompletionExamples[] =
    R"(  source <(hearthctl completion bash)                             (this shell)
  hearthctl completion bash > ~/.local/share/bash-completion/completions/hearthctl
  source <(hearthctl completion zsh)                   (in ~/.zshrc, after compinit)
)";
constexpr char kManExamples[] =
    R"(  hearthctl man | man -l -
  hearth-store --man | man -l -          (servers: a flag)
)";

constexpr char kReferenceExamples[] =
    R"(  hearthctl reference
  hearth-store --reference               (servers: a flag)
)";

// Which page to print.
struct PageFlags {
  const CommandLine* line = nullptr;
  std::string (*page)(const ProgramText&) = nullptr;
};

int RunPage(const PageFlags& flags, Console& console) {
  console.out << flags.page(flags.line->Describe()) << std::flush;
  return kExitOk;
}

}  // namespace

void AddSelfCommands(CommandLine* line) {
  const auto add = [line](const char* name, const char* what, const char* examples, auto page) {
    const auto added = line->Add<PageFlags>(name, what, examples, RunPage);
    *added.second = {line, page};
    return added;
  };
  const auto completion = add("completion", "Print the completion script for bash or zsh",
                              kCompletionExamples, BashCompletion);
  const auto choose = [flags = completion.second](int is_zsh) {
    if (is_zsh == 1) flags->page = ZshCompletion;
  };
  AddChoice(completion.first, "shell", {{"bash", 0}, {"zsh", 1}}, choose,
            "shell to generate completion for")
      ->required();
  add("man", "Print the manual page, in troff", kManExamples,
      [](const ProgramText& program) { return ManPage(program, "1"); });
  add("reference", "Print all commands and flags, in Markdown", kReferenceExamples, ReferencePage);
}

}  // namespace hearth
