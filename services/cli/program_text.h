// ProgramText: what a program's command line looks like, for pages and shells that describe it.
//
// Plain values.
#ifndef HEARTH_SERVICES_CLI_PROGRAM_TEXT_H_
#define HEARTH_SERVICES_CLI_PROGRAM_TEXT_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace hearth {

struct FlagText {
  // With dashes; of a positional argument its plain name.
  std::vector<std::string> names;
  std::string value;                 // such as FILE or UINT; empty: it takes none
  std::vector<std::string> choices;  // where it takes one of some words
  std::string help, fallback, variable;

  bool is_positional() const { return names[0][0] != '-'; }
};

struct CommandText {
  std::string name;  // one word, or two; empty: the program itself
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

// Its manual page, in troff; `section`: "1", "8".
std::string ManPage(const ProgramText& program, const std::string& section);
// Its part of docs/reference/reference.md.
std::string ReferencePage(const ProgramText& program);
// Adds --man and --reference, with which parsing ends, with the code 0 and `*page` filled in.
void AddPageFlags(const std::string& section, CLI::App* app, std::string* page);
// What a shell sources to complete its commands, its flags and their choices.
std::string BashCompletion(const ProgramText& program);
std::string ZshCompletion(const ProgramText& program);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_PROGRAM_TEXT_H_
