package limit

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is how many bytes of memory this process may have: what the machine has, or less where it
// is in a container (cgroup, version 1 or 2). 4 GiB where neither can be read.
func Memory() int64 { return memoryBelow("/") }

func memoryBelow(root string) int64 {
	least := int64(math.MaxInt64)
	if file, err := os.Open(filepath.Join(root, "proc/meminfo")); err == nil {
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			var kibibytes int64
			if _, err := fmt.Sscanf(lines.Text(), "MemTotal: %d kB", &kibibytes); err == nil {
				least = kibibytes << 10
			}
		}
	}
	// Our own group and all above it. In a container its own group is the root of what it sees.
	own, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		folder, file := "sys/fs/cgroup", "memory.max"
		if parts[1] == "memory" {
			folder, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		for group := filepath.Clean("/" + parts[2]); ; group = filepath.Dir(group) {
			text, _ := os.ReadFile(filepath.Join(root, folder, group, file))
			if bytes, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bytes > 0 {
				least = min(least, bytes)
			}
			if group == "/" {
				break
			}
		}
	}
	if least == math.MaxInt64 {
		return 4 << 30
	}
	return least
}
