// ProgramText: describes a program's command line, for manual pages, references and shell
// completion.
#ifndef HEARTH_SERVICES_CLI_PROGRAM_TEXT_H_
#define HEARTH_SERVICES_CLI_PROGRAM_TEXT_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace hearth {

struct FlagText {
  // With dashes; a positional argument has its plain name.
  std::vector<std::string> names;
  std::string value;                 // such as FILE or UINT; empty: the flag takes no value
  std::vector<std::string> choices;  // if the value must be one of these words
  std::string help, fallback, variable;

  bool is_positional() const { return names[0][0] != '-'; }
};

struct CommandText {
  std::string name;  // one or two words; empty: the program itself
  std::string what, footer;
  std::vector<FlagText> flags;
};

struct ProgramText {
  std::string name, about, footer, version;
  std::vector<FlagText> flags;
  std::vector<CommandText> commands;
};

// `app`: the whole program.
ProgramText DescribeProgram(const CLI::App& app);

// Returns the manual page in troff; `section`: "1" or "8".
std::string ManPage(const ProgramText& program, const std::string& section);
// Returns the program's part of docs/reference/reference.md.
std::string ReferencePage(const ProgramText& program);
// Adds --man and --reference. Either flag sets `*page` and ends parsing with the code 0.
void AddPageFlags(const std::string& section, CLI::App* app, std::string* page);
// Return scripts that complete commands, flags and choices when a shell sources them.
std::string BashCompletion(const ProgramText& program);
std::string ZshCompletion(const ProgramText& program);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_PROGRAM_TEXT_H_
