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
  // A flag's names, with dashes; or the plain name of a positional argument.
  std::vector<std::string> names;
  std::string value;  // type of the value, such as FILE or UINT; empty: the flag takes no value
  std::vector<std::string> choices;  // the allowed values; empty: any value
  std::string help, fallback, variable;

  bool is_positional() const { return names[0][0] != '-'; }
};

struct CommandText {
  std::string name;  // one or two words; empty: the entry describes the program itself
  std::string what, footer;
  std::vector<FlagText> flags;
};

struct ProgramText {
  std::string name, about, footer, version;
  std::vector<FlagText> flags;
  std::vector<CommandText> commands;
};

// Describes a whole program: `app` is the root command.
ProgramText DescribeProgram(const CLI::App& app);

// Returns the manual page in troff; `section`: "1" or "8".
std::string ManPage(const ProgramText& program, const std::string& section);
// Returns the section for this program in docs/reference/reference.md.
std::string ReferencePage(const ProgramText& program);
// Adds the flags --man and --reference. Parsing one of them stores the page in `*page` and ends
// with exit code 0.
void AddPageFlags(const std::string& section, CLI::App* app, std::string* page);
// BashCompletion and ZshCompletion return a shell script that completes commands and flags.
std::string BashCompletion(const ProgramText& program);
std::string ZshCompletion(const ProgramText& program);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_PROGRAM_TEXT_H_
