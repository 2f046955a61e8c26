package limit

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"a machine":              {map[string]string{"proc/meminfo": "MemFree: 1 kB\nMemTotal:  2048 kB\n"}, 2 << 20},
		"a container":            {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n", "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1048576\n"}, 1 << 20},
		"no limit":               {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n", "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 2 << 20},
		"the group above":        {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "4096", "sys/fs/cgroup/a/b/memory.max": "8192"}, 4096},
		"version 1":              {map[string]string{"proc/self/cgroup": "3:cpu:/x\n2:memory:/y\n", "sys/fs/cgroup/memory/y/memory.limit_in_bytes": "8192"}, 8192},
		"a group it cannot see":  {map[string]string{"proc/self/cgroup": "0::/../../kubepods/pod\n", "sys/fs/cgroup/memory.max": "12288"}, 12288},
		"nothing that says more": {nil, 4 << 30},
	} {
		root := t.TempDir()
		for path, content := range c.files {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := memoryBelow(root); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
}
