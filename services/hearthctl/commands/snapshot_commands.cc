// The command verify: checks snapshot files and data folders, without a running server.
#include <sys/stat.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/data_folder.h"
#include "cache_store/disk/verify.h"
#include "proto/snapshot_format.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/mapped_file.h"
#include "services/hearthctl/model_info.h"

namespace hearth {
namespace {

constexpr char kVerifyExamples[] =
    R"(  hearthctl verify saved.snapshot        (a file: its header, and the digest of every slice)
  hearthctl verify /var/lib/hearth       (a store's data folder)
The folder may be in use: the store is not disturbed, but files that it changes meanwhile can look
damaged; the output names the process that has the folder open. Exit code 1 if anything is damaged.
)";

struct FileFlags {
  std::string path;
  bool json = false;
};

size_t SliceCount(const SnapshotHeader& header) { return header.slice_offsets.size(); }

Json HeaderJson(const SnapshotHeader& header) {
  const Manifest& manifest = header.manifest;
  return Json{{"token_count", manifest.token_count},
              {"next_position", manifest.next_position},
              {"attention_mask", manifest.attention_mask},
              {"cuts", manifest.cuts},
              {"objects", manifest.objects.size()},
              {"slices", SliceCount(header)},
              {"payload_offset", header.payload_offset},
              {"file_bytes", header.file_bytes},
              {"fingerprint", DigestHex(header.fingerprint.digest())},
              {"fields", FingerprintFieldsJson(header.fingerprint)},
              {"token_ids", manifest.token_ids}};
}

void PrintHeader(const SnapshotHeader& header, Console& console) {
  const Manifest& manifest = header.manifest;
  console.out << "restore point at " << manifest.token_count << " tokens, "
              << SizeText(header.file_bytes) << ": " << manifest.objects.size() << " objects, "
              << SliceCount(header) << " slices, payload at " << header.payload_offset << "\n";
  console.out << "next position " << manifest.next_position << ", mask " << manifest.attention_mask
              << ", cuts at";
  for (uint32_t cut : manifest.cuts) console.out << " " << cut;
  console.out << (manifest.cuts.empty() ? " none" : "") << "\nfingerprint "
              << DigestHex(header.fingerprint.digest()) << "\n";
  PrintFields(header.fingerprint, console);
  console.out << "first tokens";
  for (size_t i = 0; i < manifest.token_ids.size() && i < 16; ++i) {
    console.out << " " << manifest.token_ids[i];
  }
  console.out << std::endl;
}

int VerifyFile(const FileFlags& flags, Console& console) {
  auto file = MappedFile::Open(flags.path);
  if (!file.ok()) return Fail(console, file.status());
  absl::Status status = VerifySnapshotFile((*file)->bytes());
  const auto header = ParseSnapshotHeader((*file)->bytes());
  if (status.ok()) status = header.status();
  if (flags.json) {
    Json json = header.ok() ? HeaderJson(*header) : Json::object();
    json["path"] = flags.path;
    json["ok"] = status.ok();
    json["bytes"] = (*file)->bytes().size();
    if (!status.ok()) json["error"] = std::string(status.message());
    PrintJson(json, console);
  } else if (header.ok()) {
    PrintHeader(*header, console);
  }
  if (!status.ok()) return Fail(console, About(flags.path, status));
  if (!flags.json) {
    console.out << flags.path << ": complete, " << SizeText((*file)->bytes().size()) << std::endl;
  }
  return kExitOk;
}

Json ReportJson(const std::string& dir, const VerifyReport& report,
                const std::optional<pid_t>& holder) {
  Json json{{"path", dir},
            {"ok", report.ok()},
            {"restore_points", report.restore_points},
            {"objects", report.objects},
            {"slices", report.slices},
            {"slice_bytes", report.slice_bytes},
            {"unreferenced_objects", report.unreferenced_objects},
            {"missing_restore_points", report.missing_points},
            {"problem_count", report.problem_count},
            {"problems", report.problems},
            {"misread_count", report.misread_count},
            {"misreads", report.misreads}};
  if (holder.has_value()) json["open_in_process"] = *holder;
  return json;
}

int CheckDataDir(const std::string& dir, bool json, Console& console) {
  // Verification does not disturb a running store. But files that the store is changing during
  // verification can look damaged.
  const std::optional<pid_t> holder = FolderHolder(dir);
  const std::string open = holder.has_value()
                               ? absl::StrCat("; process ", *holder,
                                              " has it open, and files that it changes meanwhile "
                                              "can look damaged: stop it and verify again")
                               : "";
  auto report = VerifyDataDir(dir);
  if (!report.ok()) {
    return Fail(console, absl::Status(report.status().code(),
                                      absl::StrCat(report.status().message(), open)));
  }
  if (json) {
    PrintJson(ReportJson(dir, *report, holder), console);
  } else {
    console.out << dir << ": " << report->restore_points << " restore points, " << report->objects
                << " objects, " << report->slices << " slices, " << SizeText(report->slice_bytes)
                << " checked";
    if (holder.has_value()) console.out << ", while process " << *holder << " has it open";
    console.out << "\n";
    for (const std::string& problem : report->problems) console.out << "  " << problem << "\n";
    if (report->misread_count > 0) {
      console.out << report->misread_count << " reads returned different bytes when repeated: "
                  << "the files are not damaged, but check the disk and its cable\n";
    }
    for (const std::string& misread : report->misreads) console.out << "  " << misread << "\n";
    console.out << std::flush;
  }
  if (report->ok()) return kExitOk;
  return Fail(
      console,
      absl::DataLossError(absl::StrCat(
          dir, ": ", report->problem_count, " problems; a store that opens the folder ",
          "does not serve damaged entries, and workers compute those prefixes again", open)));
}

int RunVerify(const FileFlags& flags, Console& console) {
  struct stat info;
  if (::stat(flags.path.c_str(), &info) != 0) {
    return Fail(console, absl::NotFoundError(absl::StrCat(flags.path, " does not exist")));
  }
  return S_ISDIR(info.st_mode) ? CheckDataDir(flags.path, flags.json, console)
                               : VerifyFile(flags, console);
}

}  // namespace

void AddVerifyCommand(CommandLine* line) {
  const auto [command, flags] = line->Add<FileFlags>(
      "verify", "Check every byte of a snapshot file or of a store's data folder", kVerifyExamples,
      RunVerify);
  command->add_option("path", flags->path, "a snapshot file or a data folder")->required();
  AddJson(command, &flags->json);
}

}  // namespace hearth
