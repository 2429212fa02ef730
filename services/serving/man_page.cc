// ManPage, in the macros of man(7).
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "services/serving/program_text.h"

namespace hearth {
namespace {

// Dashes as they are typed; no line begins with a request.
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

}  // namespace

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

}  // namespace hearth
