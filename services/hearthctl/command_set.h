// CommandSet: the subcommands of hearthctl. Each Add function declares one with its flags, help and
// examples, and the function that runs it.
//
// Thread safety: none; used by main's thread.
// Ownership: borrows the command line; owns the variables behind the flags.
#ifndef HEARTH_SERVICES_HEARTHCTL_COMMAND_SET_H_
#define HEARTH_SERVICES_HEARTHCTL_COMMAND_SET_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/cli/command_line.h"
#include "services/cli/console.h"

namespace hearth {

class CommandSet {
 public:
  explicit CommandSet(CommandLine* line) : line_(line) {}

  // Adds a subcommand; returns it with the variables for its flags, which the caller declares.
  // `examples` ends its help, one command a line. `run` returns the exit code.
  template <typename Flags>
  std::pair<CommandFlags*, Flags*> Add(const std::string& name, const std::string& what,
                                       const std::string& examples,
                                       int (*run)(const Flags&, Console&)) {
    CommandFlags* command = line_->AddCommand(name, what, "\nExamples:\n" + examples);
    const auto flags = std::make_shared<Flags>();
    runners_.emplace_back(command, [=](Console& console) { return run(*flags, console); });
    return {command, flags.get()};
  }
  void BeginGroup(const std::string& title) { line_->BeginGroup(title); }
  // The whole command line, as far as it was added.
  ProgramText Describe() const { return line_->Describe(); }
  // Runs the subcommand that was parsed. REQUIRES: exactly one was.
  int RunChosen(Console& console) const {
    for (const auto& [command, runner] : runners_) {
      if (command->chosen()) return runner(console);
    }
    return FailUsage(console, "no subcommand given");
  }

 private:
  CommandLine* const line_;
  std::vector<std::pair<const CommandFlags*, std::function<int(Console&)>>> runners_;
};

// About hearthctl itself (completion_command.cc): added last, since they describe the others.
void AddCompletionCommands(CommandSet* commands);
// Generation (generate_command.cc, chat_command.cc, state_commands.cc,
// tokenize_command.cc).
void AddGenerateCommand(CommandSet* commands);
void AddChatCommand(CommandSet* commands);
void AddStateCommands(CommandSet* commands);
void AddTokenizeCommand(CommandSet* commands);
// Stores and workers (warm_command.cc, explain_command.cc, ...).
void AddWarmCommand(CommandSet* commands);
void AddExplainCommand(CommandSet* commands);
void AddStatsCommand(CommandSet* commands);
void AddModelCommand(CommandSet* commands);
void AddDoctorCommand(CommandSet* commands);
// Restore points (restore_point_commands.cc, transfer_commands.cc, watch_command.cc).
void AddListCommand(CommandSet* commands);
void AddPinCommands(CommandSet* commands);
void AddDropCommand(CommandSet* commands);
void AddWatchCommand(CommandSet* commands);
void AddExportCommand(CommandSet* commands);
void AddImportCommand(CommandSet* commands);
// Without a server (snapshot_commands.cc, diff_command.cc, backup_commands.cc).
void AddVerifyCommand(CommandSet* commands);
void AddDiffCommand(CommandSet* commands);
void AddBackupCommands(CommandSet* commands);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_COMMAND_SET_H_
