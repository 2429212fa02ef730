// CommandSet: the subcommands of hearthctl. Each Add function declares one with its flags, help and
// examples, and what runs when it is chosen.
//
// Thread safety: none; used by main's thread.
// Ownership: the CLI::App owns the flags' descriptions; what runs owns the flags' values.
#ifndef HEARTH_SERVICES_HEARTHCTL_COMMAND_SET_H_
#define HEARTH_SERVICES_HEARTHCTL_COMMAND_SET_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "services/hearthctl/console.h"

namespace hearth {

class CommandSet {
 public:
  using Runner = std::function<int(Console&)>;

  explicit CommandSet(CLI::App* app) : app_(app) {}

  // `examples` ends the subcommand's help, one command a line.
  CLI::App* Add(const std::string& name, const std::string& what, const std::string& examples) {
    CLI::App* command = app_->add_subcommand(name, what);
    command->footer("\nExamples:\n" + examples);
    return command;
  }
  void Run(CLI::App* command, Runner runner) { runners_.emplace_back(command, std::move(runner)); }
  // Runs the subcommand that was parsed. REQUIRES: exactly one was.
  int RunChosen(Console& console) const {
    for (const auto& [command, runner] : runners_) {
      if (command->parsed()) return runner(console);
    }
    return FailUsage(console, "no subcommand given");
  }

 private:
  CLI::App* const app_;
  std::vector<std::pair<CLI::App*, Runner>> runners_;
};

// Generation (generate_command.cc, chat_command.cc, tokenize_command.cc).
void AddGenerateCommand(CommandSet* commands);
void AddChatCommand(CommandSet* commands);
void AddTokenizeCommand(CommandSet* commands);
// What the store has and what a worker is (warm_command.cc, explain_command.cc, ...).
void AddWarmCommand(CommandSet* commands);
void AddExplainCommand(CommandSet* commands);
void AddStatsCommand(CommandSet* commands);
void AddFingerprintCommand(CommandSet* commands);
// Restore points (restore_point_commands.cc, transfer_commands.cc, watch_command.cc).
void AddListCommand(CommandSet* commands);
void AddPinCommands(CommandSet* commands);
void AddDropCommand(CommandSet* commands);
void AddWatchCommand(CommandSet* commands);
void AddExportCommand(CommandSet* commands);
void AddImportCommand(CommandSet* commands);
// Without a server (snapshot_commands.cc, diff_command.cc, simulate_command.cc,
// backup_commands.cc).
void AddInspectCommand(CommandSet* commands);
void AddVerifyCommand(CommandSet* commands);
void AddDiffCommand(CommandSet* commands);
void AddSimulateCommand(CommandSet* commands);
void AddBackupCommands(CommandSet* commands);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_COMMAND_SET_H_
