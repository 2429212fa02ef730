// The commands backup and restore: copy a store's data folder, without a running server.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/backup.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

constexpr char kBackupExamples[] =
    R"(  hearthctl backup --data-dir /var/lib/hearth --to /backup/hearth     (the store is stopped)
  kill -USR1 PID                            (a running store, started with --backup-dir)
A second backup into the same folder copies only new data. The secret of the keys is included.
)";
constexpr char kRestoreExamples[] =
    R"(  hearthctl restore --from /backup/hearth --data-dir /var/lib/hearth
  hearthctl restore --from /backup/hearth --data-dir /tmp/look --id 2
Checks every byte first. If the backup is damaged, refuses it and creates no folder.
)";
constexpr char kKeepSecret[] =
    "the backup does not have the secret of the keys (--secret-file): keep that file too, the "
    "folder cannot be opened without it";

struct BackupFlags {
  std::string data_dir, folder;
  uint32_t id = 0;
  bool json = false;
};

int RunBackup(const BackupFlags& flags, Console& console) {
  const auto report = BackUpDataDir(flags.data_dir, flags.folder);
  if (!report.ok() && absl::StrContains(report.status().message(), "held by another process")) {
    return Fail(console,
                absl::FailedPreconditionError(absl::StrCat(
                    report.status().message(),
                    "; if the store runs with --backup-dir, start its backup by kill -USR1 PID")));
  }
  if (!report.ok()) return Fail(console, report.status());
  if (flags.json) {
    return PrintJson({{"id", report->id},
                      {"bytes", report->bytes},
                      {"new_bytes", report->new_bytes},
                      {"has_secret", report->has_secret}},
                     console);
  }
  console.out << flags.folder << ": backup " << report->id << ", " << SizeText(report->bytes)
              << ", of which " << SizeText(report->new_bytes) << " new\n";
  if (!report->has_secret) console.out << kKeepSecret << "\n";
  console.out << std::flush;
  return kExitOk;
}

int RunRestore(const BackupFlags& flags, Console& console) {
  const auto report = RestoreDataDir(flags.folder, flags.data_dir, flags.id);
  if (!report.ok()) return Fail(console, report.status());
  const VerifyReport& verified = report->verified;
  if (flags.json) {
    return PrintJson({{"id", report->id},
                      {"restore_points", verified.restore_points},
                      {"slices", verified.slices},
                      {"slice_bytes", verified.slice_bytes},
                      {"problem_count", verified.problem_count},
                      {"has_secret", report->has_secret}},
                     console);
  }
  console.out << flags.data_dir << ": backup " << report->id << " restored, "
              << verified.restore_points << " restore points, " << SizeText(verified.slice_bytes)
              << " checked\n";
  if (!verified.ok()) {
    console.out << verified.problem_count
                << " objects were damaged before the backup; the store does not serve them\n";
  }
  if (!report->has_secret) console.out << kKeepSecret << "\n";
  console.out << std::flush;
  return kExitOk;
}

}  // namespace

void AddBackupCommands(CommandLine* line) {
  const auto [command, backup] = line->Add<BackupFlags>(
      "backup", "Copy a stopped store's data folder", kBackupExamples, RunBackup);
  command->add_option("--data-dir", backup->data_dir, "the store's data folder")->required();
  command->add_option("--to", backup->folder, "the backup folder")->required();
  AddJson(command, &backup->json);

  const auto [other, restore] = line->Add<BackupFlags>(
      "restore", "Create a data folder from a backup", kRestoreExamples, RunRestore);
  other->add_option("--from", restore->folder, "the backup folder")->required();
  other->add_option("--data-dir", restore->data_dir, "the data folder to create")->required();
  other->add_option("--id", restore->id, "number of the backup (default: the newest)");
  AddJson(other, &restore->json);
}

}  // namespace hearth
