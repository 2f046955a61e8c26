package proto_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"tendril.dev/proto"
)

func TestSplitPack(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", proto.MaxPackBytes)
	for _, tc := range []struct {
		name, data string
		lines      int // 0: refused
	}{
		{"nothing", "", 1},
		{"one", "{}", 1},
		{"two", "{}\n{}", 2},
		{"a line break at the end", "{}\n", 2},
		{"only a line break", "\n", 2},
		{"as many as may be", strings.Repeat("\n", proto.MaxPackEvents-1), proto.MaxPackEvents},
		{"one more", strings.Repeat("\n", proto.MaxPackEvents), 0},
		{"as large as may be", large[:len(large)-3] + "\n{}", 2},
		{"one byte more", large[:len(large)-2] + "\n{}", 0},
		{"one that is larger", large + large, 1},
	} {
		lines, err := proto.SplitPack([]byte(tc.data))
		if len(lines) != tc.lines || errors.Is(err, proto.ErrPack) != (tc.lines == 0) {
			t.Errorf("%s: %d lines, %v; want %d", tc.name, len(lines), err, tc.lines)
		}
		if err != nil {
			continue
		}
		_ = append(lines[0], "does not reach the next line"...)
		if string(proto.JoinPack(lines)) != tc.data {
			t.Errorf("%s: joined again it is another", tc.name)
		}
	}
}

// FuzzSplitPack: lines are without line breaks, within the bounds, and make the same pack again.
func FuzzSplitPack(f *testing.F) {
	f.Add([]byte("{}\n{}\n\n"))
	f.Add(bytes.Repeat([]byte("\n"), 2*proto.MaxPackEvents))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines, err := proto.SplitPack(data)
		if err != nil {
			if !errors.Is(err, proto.ErrPack) || lines != nil {
				t.Fatalf("%d lines with %v", len(lines), err)
			}
			return
		}
		if len(lines) == 0 || len(lines) > proto.MaxPackEvents || len(lines) > 1 && len(data) > proto.MaxPackBytes {
			t.Fatalf("%d lines of %d bytes", len(lines), len(data))
		}
		for _, line := range lines {
			if bytes.IndexByte(line, '\n') >= 0 {
				t.Fatalf("a line with a line break: %q", line)
			}
		}
		if !bytes.Equal(proto.JoinPack(lines), data) {
			t.Fatal("joined again it is another")
		}
	})
}
