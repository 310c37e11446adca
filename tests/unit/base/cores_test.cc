#include <gtest/gtest.h>

#include "base/cores.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

namespace heed::detail {
namespace {

/// Control groups in a folder of this test.
class Groups : public ::testing::Test {
protected:
    void SetUp() override {
        folder = std::filesystem::temp_directory_path() / ("heed-groups-" + std::to_string(getpid()));
        std::filesystem::remove_all(folder);
    }
    void TearDown() override { std::filesystem::remove_all(folder); }
    void write(const std::string& name, const std::string& text) const {
        const std::filesystem::path path = folder / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text;
    }
    int quota() const { return cpu_quota((folder / "self").string(), (folder / "fs").string()); }

    std::filesystem::path folder;
};

TEST_F(Groups, NoneIsNoLimit) {
    EXPECT_EQ(quota(), 0);
    write("self", "0::/\n");
    EXPECT_EQ(quota(), 0);
    write("fs/cpu.max", "max 100000\n");
    EXPECT_EQ(quota(), 0);
}

TEST_F(Groups, Version2CountsTheLeastUpToTheRoot) {
    write("self", "0::/pod/container\n");
    write("fs/pod/container/cpu.max", "max 100000\n");
    write("fs/pod/cpu.max", "350000 100000\n");
    EXPECT_EQ(quota(), 4);  // 3.5 rounded up
    write("fs/pod/container/cpu.max", "200000 100000\n");
    EXPECT_EQ(quota(), 2);
    write("fs/cpu.max", "50000 100000\n");
    EXPECT_EQ(quota(), 1);
}

TEST_F(Groups, Version1HasAFolderForEachController) {
    write("self", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n");
    write("fs/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
    write("fs/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(quota(), 0);
    write("fs/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "400000\n");
    EXPECT_EQ(quota(), 4);
    // In a container the path is the host's; the root is what is there.
    write("self", "4:cpu,cpuacct:/elsewhere\n");
    EXPECT_EQ(quota(), 0);
    write("fs/cpu/cpu.cfs_quota_us", "300000\n");
    write("fs/cpu/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(quota(), 3);
}

TEST_F(Groups, NonsenseIsNoLimit) {
    for (const char* text : {"", "x y\n", "-5 100000\n", "100000\n", "100000 0\n", "0 100000\n", "nan nan\n"}) {
        write("self", "0::/a\nnonsense\n::::\n");
        write("fs/a/cpu.max", text);
        EXPECT_EQ(quota(), 0) << text;
    }
    write("fs/a/cpu.max", "1e300 1\n");
    EXPECT_EQ(quota(), 4096);
}

TEST(Cores, AtLeastOneAndWithinTheQuota) {
    EXPECT_GE(usable_cores(), 1);
    const int quota = cpu_quota();
    if (quota > 0) { EXPECT_LE(usable_cores(), quota); }
}

TEST(Cores, AnAskedNumberIsAnUpperBound) {
    const char* before = std::getenv("OMP_NUM_THREADS");
    const std::string kept = before == nullptr ? "" : before;
    const auto with = [](const char* text) {
        setenv("OMP_NUM_THREADS", text, 1);
        return default_threads();
    };
    EXPECT_EQ(with("1"), 1);
    EXPECT_EQ(with("1,4"), 1);
    for (const char* text : {"", "0", "-3", "many", "99999999999999999999"}) {
        EXPECT_EQ(with(text), usable_cores()) << text;
    }
    if (before == nullptr) {
        unsetenv("OMP_NUM_THREADS");
    } else {
        setenv("OMP_NUM_THREADS", kept.c_str(), 1);
    }
}

}  // namespace
}  // namespace heed::detail
