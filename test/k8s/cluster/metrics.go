package cluster

import (
	"bufio"
	"strconv"
	"strings"
)

// Metric is the value of a metric in the text that /metrics answers: the sum over all its labels.
// found reports whether there is one.
func Metric(text, name string) (sum float64, found bool) {
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line, isIt := strings.CutPrefix(lines.Text(), name)
		if !isIt || line == "" || line[0] != ' ' && line[0] != '{' {
			continue
		}
		if end := strings.LastIndexByte(line, '}'); end >= 0 {
			line = line[end+1:]
		}
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			continue
		}
		sum, found = sum+value, true
	}
	return sum, found
}
