package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/config"
	"tendril.dev/lib/disk"
)

// disks tells, at each scrape, how much room the disks of the data folders have. The label says
// which folder it is and not its path: a stranger may read the metrics of the front port.
type disks struct{ folders map[string]string } // path by label

func newDisks(s config.Settings) disks {
	if s.DatabaseBackend == "memory" {
		return disks{map[string]string{"git": s.GitDataPath}}
	}
	return disks{map[string]string{"relay": s.RelayDataPath, "git": s.GitDataPath}}
}

var (
	diskFree = prometheus.NewDesc("ngit_disk_free_bytes", "Free bytes of the disk of a data folder.",
		[]string{"folder"}, nil)
	diskSize = prometheus.NewDesc("ngit_disk_size_bytes", "Bytes of the disk of a data folder.", []string{"folder"}, nil)
)

// Describe implements prometheus.Collector.
func (d disks) Describe(descs chan<- *prometheus.Desc) { descs <- diskFree; descs <- diskSize }

// Collect implements prometheus.Collector. A folder that this process does not have is left out.
func (d disks) Collect(metrics chan<- prometheus.Metric) {
	for label, path := range d.folders {
		free, size, err := disk.Free(path)
		if err != nil {
			continue
		}
		metrics <- prometheus.MustNewConstMetric(diskFree, prometheus.GaugeValue, float64(free), label)
		metrics <- prometheus.MustNewConstMetric(diskSize, prometheus.GaugeValue, float64(size), label)
	}
}
