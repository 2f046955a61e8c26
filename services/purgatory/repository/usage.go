package repository

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// usage is what the git processes of a store are doing and what they have cost. It is a
// prometheus.Collector. The operation is git's own command: upload-pack, index-pack.
type usage struct {
	waiting atomic.Int64 // commands that wait for a process and its memory

	mu      sync.Mutex
	running map[int]string     // operation by process id
	seconds map[string]float64 // of processors, of the processes that have ended, by operation
}

func newUsage() *usage { return &usage{running: map[int]string{}, seconds: map[string]float64{}} }

// started notes a process. end notes its end, with what it and its own children took of processors.
func (u *usage) started(process *os.Process, operation string) (end func(*os.ProcessState)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running[process.Pid] = operation
	return func(state *os.ProcessState) {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.running, process.Pid)
		if state != nil {
			u.seconds[operation] += (state.UserTime() + state.SystemTime()).Seconds()
		}
	}
}

var (
	gitProcesses = prometheus.NewDesc("ngit_git_processes", "Git processes that run now.", []string{"operation"}, nil)
	gitQueue     = prometheus.NewDesc("ngit_git_queue", "Git commands that wait for a process and its memory.", nil, nil)
	gitSeconds   = prometheus.NewDesc("ngit_git_cpu_seconds_total",
		"Processor time of git processes that have ended, with what they started.", []string{"operation"}, nil)
	gitMemory = prometheus.NewDesc("ngit_git_memory_bytes",
		"Resident memory of the git processes that run now, with what they started.", nil, nil)
)

// Describe implements prometheus.Collector.
func (u *usage) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{gitProcesses, gitQueue, gitSeconds, gitMemory} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector. An operation that has run once stays, with 0.
func (u *usage) Collect(metrics chan<- prometheus.Metric) {
	tell := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
	}
	u.mu.Lock()
	running, processes := map[string]int{}, []int{}
	for operation, seconds := range u.seconds {
		running[operation] = 0
		tell(gitSeconds, prometheus.CounterValue, seconds, operation)
	}
	for process, operation := range u.running {
		running[operation]++
		processes = append(processes, process)
	}
	u.mu.Unlock()
	for operation, n := range running {
		tell(gitProcesses, prometheus.GaugeValue, float64(n), operation)
	}
	var memory int64
	for _, process := range withChildren(processes) {
		memory += residentBytes(process)
	}
	tell(gitMemory, prometheus.GaugeValue, float64(memory))
	tell(gitQueue, prometheus.GaugeValue, float64(u.waiting.Load()))
}

// mostLookedAt bounds the processes whose memory is read at a scrape.
const mostLookedAt = 1024

// withChildren adds what processes have started: upload-pack leaves the work to pack-objects. One
// that has ended meanwhile adds nothing.
func withChildren(processes []int) []int {
	for i := 0; i < len(processes) && len(processes) < mostLookedAt; i++ {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", processes[i]))
		for _, child := range strings.Fields(string(children)) {
			if id, err := strconv.Atoi(child); err == nil && !slices.Contains(processes, id) {
				processes = append(processes, id)
			}
		}
	}
	return processes
}

// residentBytes is the memory of a process; 0 if it has ended.
func residentBytes(process int) int64 {
	sizes, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", process))
	if fields := strings.Fields(string(sizes)); len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		return pages * int64(os.Getpagesize())
	}
	return 0
}
