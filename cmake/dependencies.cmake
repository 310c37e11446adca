# Private to the library; docs/dependencies.md says why each is here.
find_package(Threads REQUIRED)
target_link_libraries(heed PUBLIC Threads::Threads)

find_package(nlohmann_json 3.9 REQUIRED)
target_link_libraries(heed PRIVATE $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
