# hearthctl: the command line. A library of its own, so that tests run its commands in process.
add_library(hearthctl_commands STATIC
  hearthctl/backup_commands.cc
  hearthctl/chat_command.cc hearthctl/chat_file.cc hearthctl/cli.cc hearthctl/connection.cc
  hearthctl/console.cc hearthctl/data_dir_check.cc hearthctl/diff_command.cc
  hearthctl/explain_command.cc
  hearthctl/fingerprint_command.cc hearthctl/generate_command.cc hearthctl/generation.cc
  hearthctl/hit_rate_picture.cc
  hearthctl/interrupt.cc hearthctl/json_text.cc hearthctl/mapped_file.cc
  hearthctl/model_command.cc hearthctl/model_info.cc
  hearthctl/prompt_flags.cc hearthctl/repair_command.cc
  hearthctl/restore_point_commands.cc hearthctl/restore_points.cc
  hearthctl/simulate_command.cc
  hearthctl/snapshot_commands.cc hearthctl/snapshot_writer.cc hearthctl/stats_command.cc
  hearthctl/stopped_store.cc hearthctl/tls_mismatch.cc
  hearthctl/tokenize_command.cc hearthctl/transfer_commands.cc hearthctl/warm_command.cc
  hearthctl/warm_file.cc hearthctl/warmer.cc hearthctl/watch_command.cc)
hearth_compile(hearthctl_commands HEADERS hearth_rpc_headers TOGETHER 8)
target_link_libraries(hearthctl_commands
  PUBLIC hearth_rpc hearth_flags hearth_json
  PRIVATE hearth_results hearth_simulate nlohmann_json::nlohmann_json yaml-cpp Threads::Threads)

add_executable(hearthctl hearthctl_main.cc)
hearth_compile(hearthctl HEADERS hearth_rpc_headers)
target_link_libraries(hearthctl PRIVATE hearthctl_commands)
