#include "services/serving/program_text.h"

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "services/serving/version.h"

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

// Of the app and of the groups in it, which have no name.
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
    if (commands->size() > count) continue;  // it only gathers those
    CommandText& command = commands->emplace_back();
    command.name = name;
    command.what = below->get_description();
    command.footer = below->get_footer();
    AddFlags(*below, &command.flags);
  }
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

}  // namespace hearth
