hearth_test(hearthctl_test
  SOURCES hearthctl/access_test.cc hearthctl/base_model_test.cc
          hearthctl/chat_command_test.cc hearthctl/chat_file_test.cc
          hearthctl/command_line_test.cc
          hearthctl/connection_test.cc hearthctl/diff_command_test.cc
          hearthctl/fake_worker.cc
          hearthctl/generate_command_test.cc hearthctl/interrupt_test.cc
          hearthctl/prompt_flags_test.cc
          hearthctl/progress_line_test.cc hearthctl/run_cli.cc
          hearthctl/console_test.cc
          hearthctl/snapshot_writer_test.cc
          hearthctl/store_commands_test.cc hearthctl/terminal.cc hearthctl/terminal_test.cc
          hearthctl/usage_test.cc hearthctl/warm_command_test.cc hearthctl/warm_file_test.cc
          hearthctl/transcript_test.cc
  LIBS hearthctl_commands hearth_simulate hearth_cache_service
       hearth_store_test_support
       nlohmann_json::nlohmann_json OpenSSL::Crypto util
  HEADERS hearth_rpc_test_headers TOGETHER 5 LABELS services)

target_compile_definitions(hearthctl_test
  PRIVATE HEARTH_GOLDEN_DIR="${CMAKE_SOURCE_DIR}/tests/proto/golden"
          HEARTHCTL_TRANSCRIPTS="${CMAKE_CURRENT_SOURCE_DIR}/hearthctl/transcripts"
          HEARTHCTL_PROGRAM="$<TARGET_FILE:hearthctl>")
add_dependencies(hearthctl_test hearthctl)

add_test(NAME demo_verdict_and_picture
  COMMAND ${HEARTH_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/hearthctl/demo_test.py)
set_tests_properties(demo_verdict_and_picture PROPERTIES LABELS services TIMEOUT 600)

add_test(NAME hearthctl_completion
  COMMAND ${HEARTH_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/hearthctl/completion_test.py
          $<TARGET_FILE:hearthctl> $<TARGET_FILE:hearth-store>)
set_tests_properties(hearthctl_completion PROPERTIES LABELS services TIMEOUT 600)
