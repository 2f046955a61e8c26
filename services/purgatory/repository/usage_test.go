package repository

import (
	"bufio"
	"os/exec"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestUsage: a process is there while it runs, with the memory of what it started; afterwards its
// operation stays with 0, and with its processor time.
func TestUsage(t *testing.T) {
	t.Parallel()
	u := newUsage()
	figures := func() map[string]float64 {
		registry := prometheus.NewRegistry()
		registry.MustRegister(u)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, family := range families {
			for _, m := range family.Metric {
				name := family.GetName()
				for _, label := range m.Label {
					name += " " + label.GetValue()
				}
				all[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return all
	}
	// The shell starts another, which waits for the end of its input.
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; (echo ready; read line); :")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := u.started(cmd.Process, "upload-pack")
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	running := figures()
	alone := float64(residentBytes(cmd.Process.Pid))
	if running["ngit_git_processes upload-pack"] != 1 || alone == 0 || running["ngit_git_memory_bytes"] <= alone {
		t.Errorf("while it runs: %v; it has %v bytes itself", running, alone)
	}
	input.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	ended(cmd.ProcessState)
	after := figures()
	n, told := after["ngit_git_processes upload-pack"]
	if n != 0 || !told || after["ngit_git_memory_bytes"] != 0 || after["ngit_git_cpu_seconds_total upload-pack"] <= 0 {
		t.Errorf("after its end: %v", after)
	}
}
