#include "services/cli/program_text.h"

#include <CLI/CLI.hpp>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "services/cli/version.h"

namespace hearth {
namespace {

FlagText DescribeFlag(const CLI::Option& option) {
  FlagText flag;
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  if (flag.names.empty()) flag.names.push_back(option.get_name());
  if (option.get_items_expected_max() > 0) flag.value = option.get_type_name();
  if (absl::StrContains(flag.value, '|')) flag.choices = absl::StrSplit(flag.value, '|');
  flag.help = option.get_description();
  flag.fallback = option.get_default_str();
  flag.variable = option.get_envname();
  return flag;
}

// Adds the flags of `app` and of its option groups. CLI11 represents an option group as a
// subcommand without a name.
void AddFlags(const CLI::App& app, std::vector<FlagText>* flags) {
  for (const CLI::Option* option : app.get_options()) flags->push_back(DescribeFlag(*option));
  for (const CLI::App* group : app.get_subcommands(nullptr)) {
    if (group->get_name().empty()) AddFlags(*group, flags);
  }
}

void AddCommands(const CLI::App& app, const std::string& before,
                 std::vector<CommandText>* commands) {
  for (const CLI::App* below : app.get_subcommands(nullptr)) {
    if (below->get_name().empty()) continue;
    const std::string name = before + below->get_name();
    const size_t count = commands->size();
    AddCommands(*below, name + " ", commands);
    // this command only groups the commands that were just added
    if (commands->size() > count) continue;
    CommandText& command = commands->emplace_back();
    command.name = name;
    command.what = below->get_description();
    command.footer = below->get_footer();
    AddFlags(*below, &command.flags);
  }
}

// Escapes backslashes and dashes, and a "." or "'" that troff would read as a request at the start
// of a line.
std::string Troff(const std::string& text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  escaped = absl::StrReplaceAll(escaped, {{"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
  return absl::StartsWith(escaped, ".") || absl::StartsWith(escaped, "'") ? "\\&" + escaped
                                                                          : escaped;
}

std::string AsIs(const std::string& text) {
  const std::string stripped(
      absl::StripTrailingAsciiWhitespace(absl::StripPrefix(absl::string_view(text), "\n")));
  return stripped.empty() ? "" : absl::StrCat(".PP\n.nf\n", Troff(stripped), "\n.fi\n");
}

std::string FlagsPart(const std::vector<FlagText>& flags) {
  std::string page;
  for (const FlagText& flag : flags) {
    absl::StrAppend(&page, ".TP\n\\fB", Troff(absl::StrJoin(flag.names, ", ")), "\\fR");
    if (!flag.value.empty()) absl::StrAppend(&page, " \\fI", Troff(flag.value), "\\fR");
    absl::StrAppend(&page, "\n", Troff(flag.help.empty() ? "(no description)" : flag.help));
    if (!flag.fallback.empty()) {
      absl::StrAppend(&page, "\n(default: ", Troff(flag.fallback), ")");
    }
    if (!flag.variable.empty()) absl::StrAppend(&page, "\n[", Troff(flag.variable), "]");
    page += "\n";
  }
  return page;
}

// Escapes text for a table cell in Markdown.
std::string Cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"\n", " "}, {"<", "&lt;"}});
}

std::string FlagTable(const std::vector<FlagText>& flags) {
  std::string table =
      "\n| flag | value | default | environment | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const FlagText& flag : flags) {
    absl::StrAppend(&table, "| `", absl::StrJoin(flag.names, "`, `"), "` | ", Cell(flag.value),
                    " | ", Cell(flag.fallback), " | ",
                    flag.variable.empty() ? "" : absl::StrCat("`", flag.variable, "`"), " | ",
                    Cell(flag.help), " |\n");
  }
  return table;
}

std::vector<std::string> FlagNames(const std::vector<FlagText>& flags) {
  std::vector<std::string> names;
  for (const FlagText& flag : flags) {
    if (!flag.is_positional()) names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  return names;
}

// Returns the allowed words of all positional arguments.
std::string LooseWords(const std::vector<FlagText>& flags) {
  std::vector<std::string> words;
  for (const FlagText& flag : flags) {
    if (flag.is_positional()) words.insert(words.end(), flag.choices.begin(), flag.choices.end());
  }
  return absl::StrJoin(words, " ");
}

// For commands of two words such as "state save": returns the second words by first word.
std::map<std::string, std::vector<std::string>> Words(const ProgramText& program) {
  std::map<std::string, std::vector<std::string>> words;
  for (const CommandText& command : program.commands) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(command.name, absl::MaxSplits(' ', 1));
    words[pair.first];
    if (!pair.second.empty()) words[pair.first].push_back(pair.second);
  }
  return words;
}

std::string FirstWords(const ProgramText& program) {
  return absl::StrJoin(Words(program), " ",
                       [](std::string* out, const auto& word) { *out += word.first; });
}

// Returns the cases of bash's `case` statement for one command: after a flag with choices, offers
// the choices; after a dash, offers the flags. If neither matches, bash completes file names.
std::string BashFlags(const std::vector<FlagText>& flags) {
  std::string cases;
  for (const FlagText& flag : flags) {
    if (flag.value.empty() || flag.is_positional()) continue;
    absl::StrAppend(&cases, "        ", absl::StrJoin(flag.names, "|"), ") offers=\"",
                    absl::StrJoin(flag.choices, " "), "\" ;;\n");
  }
  return absl::StrCat("      case $prev in\n", cases, "        *) offers=\"", LooseWords(flags),
                      "\"; [[ $cur == -* ]] && offers=\"", absl::StrJoin(FlagNames(flags), " "),
                      "\" ;;\n      esac ;;\n");
}

}  // namespace

ProgramText DescribeProgram(const CLI::App& app) {
  ProgramText program;
  program.name = app.get_name();
  program.about = app.get_description();
  program.footer = app.get_footer();
  program.version = kVersion;
  AddFlags(app, &program.flags);
  AddCommands(app, "", &program.commands);
  return program;
}

std::string ManPage(const ProgramText& program, const std::string& section) {
  std::string page = absl::StrCat(
      ".TH ", absl::AsciiStrToUpper(Troff(program.name)), " ", section, " \"\" \"Hearth ",
      program.version, "\" \"Hearth\"\n.SH NAME\n", Troff(program.name), " \\- ",
      Troff(program.about.substr(0, program.about.find('\n'))), "\n.SH SYNOPSIS\n.B ",
      Troff(program.name),
      program.commands.empty() ? "\n[flags]\n" : "\ncommand [flags]\n.SH DESCRIPTION\n");
  if (program.commands.empty()) page += ".SH DESCRIPTION\n";
  absl::StrAppend(&page, Troff(program.about), "\n", AsIs(program.footer), ".SH FLAGS\n",
                  FlagsPart(program.flags));
  if (!program.commands.empty()) page += ".SH COMMANDS\n";
  for (const CommandText& command : program.commands) {
    absl::StrAppend(&page, ".SS \"", Troff(program.name), " ", Troff(command.name), "\"\n",
                    Troff(command.what), "\n", FlagsPart(command.flags), AsIs(command.footer));
  }
  return page;
}

std::string ReferencePage(const ProgramText& program) {
  std::string page = absl::StrCat("## ", program.name, "\n\n", program.about, "\n");
  if (!program.flags.empty()) page += FlagTable(program.flags);
  for (const CommandText& command : program.commands) {
    absl::StrAppend(&page, "\n### ", program.name, " ", command.name, "\n\n", command.what, "\n",
                    FlagTable(command.flags));
  }
  return page;
}

void AddPageFlags(const std::string& section, CLI::App* app, std::string* page) {
  const auto add = [=](const char* flag, const char* help, const auto& write) {
    const auto end = [=] {
      *page = write(DescribeProgram(*app));
      throw CLI::RuntimeError(0);
    };
    app->add_flag_callback(flag, end, help);
  };
  add("--man", "Print the manual page, in troff, and exit",
      [section](const ProgramText& program) { return ManPage(program, section); });
  add("--reference", "Print the flags, in Markdown, and exit", ReferencePage);
}

std::string BashCompletion(const ProgramText& program) {
  std::string cases, groups;
  for (const auto& [word, second] : Words(program)) {
    if (second.empty()) continue;
    absl::StrAppend(&groups, "    ", word, ") [[ $COMP_CWORD -gt 2 ]] && command+=\" ",
                    "${COMP_WORDS[2]}\" ;;\n");
    absl::StrAppend(&cases, "    \"", word, "\") offers=\"", absl::StrJoin(second, " "), "\" ;;\n");
  }
  for (const CommandText& command : program.commands) {
    absl::StrAppend(&cases, "    \"", command.name, "\")\n", BashFlags(command.flags));
  }
  return absl::StrCat(
      "_", program.name,
      "() {\n  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n",
      "  local command= offers=\n",
      "  [[ $COMP_CWORD -gt 1 ]] && command=${COMP_WORDS[1]}\n  case $command in\n", groups,
      "  esac\n  case $command in\n    \"\") offers=\"", FirstWords(program), " ",
      absl::StrJoin(FlagNames(program.flags), " "), "\" ;;\n", cases,
      "  esac\n  COMPREPLY=($(compgen -W \"$offers\" -- \"$cur\"))\n}\n",
      "complete -o default -o bashdefault -F _", program.name, " ", program.name, "\n");
}

std::string ZshCompletion(const ProgramText& program) {
  return "autoload -Uz bashcompinit && bashcompinit\n" + BashCompletion(program);
}

}  // namespace hearth
