package limit

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/disk"
	"tendril.dev/lib/testonly"
	"tendril.dev/proto"
)

// Marks are the high-water marks of a process: of the log, and of free disk. Above one only owners
// and maintainers of served repositories may add data.
type Marks struct {
	log   *slog.Logger
	gauge prometheus.Gauge
	looks []Look
	full  atomic.Pointer[string]
}

// Look reports why there is no room; "": there is.
type Look func(context.Context) (full string, err error)

// lookEvery is how often the marks are looked at.
const lookEvery = 5 * time.Second

// NewMarks makes the marks of what a service stores. [Marks.Run] looks at them.
func NewMarks(what string, log *slog.Logger, metrics prometheus.Registerer, looks ...Look) *Marks {
	m := &Marks{log: log, looks: looks, gauge: promauto.With(metrics).NewGauge(prometheus.GaugeOpts{
		Name: "ngit_full", ConstLabels: prometheus.Labels{"store": what},
		Help: "1 above a high-water mark: only owners and maintainers of served repositories may add data.",
	})}
	m.full.Store(new(string))
	return m
}

// Run looks at the marks until ctx ends.
func (m *Marks) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		m.Look(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Look looks at the marks once. What cannot be looked at is as it was.
func (m *Marks) Look(ctx context.Context) {
	why := ""
	for _, look := range m.looks {
		full, err := look(ctx)
		if err != nil {
			m.log.Warn("a high-water mark cannot be looked at", "error", err)
			return
		}
		why = cmp.Or(why, full)
	}
	before := m.Full()
	m.full.Store(&why)
	switch {
	case before == "" && why != "":
		m.gauge.Set(1)
		m.log.Error("this service is full: only owners and maintainers of served repositories may add data", "reason", why)
	case before != "" && why == "":
		m.gauge.Set(0)
		m.log.Info("this service has room again")
	}
}

// Full reports why there is no room; "": there is.
func (m *Marks) Full() string {
	if m == nil {
		return ""
	}
	return *m.full.Load()
}

// leastFree is what must be free on a disk of a size, in bytes: a tenth of it, but at least 1 GiB.
func leastFree(all int64) int64 {
	return int64(testonly.Int("DISK_LEAST_FREE", int(max(1<<30, all/10))))
}

// Disk looks at the free space of the disk that holds a folder.
func Disk(folder string) Look {
	return func(context.Context) (string, error) {
		free, all, err := disk.Free(folder)
		if err != nil {
			return "", err
		}
		if least := leastFree(all); free < least {
			return fmt.Sprintf("%d MiB are free on the disk of %s; new data needs %d MiB", free>>20, folder, least>>20), nil
		}
		return "", nil
	}
}

// Writable looks at whether the bus can store anything.
func Writable(b *bus.Bus) Look {
	return func(context.Context) (string, error) {
		if err := b.Full(); err != nil {
			return err.Error(), nil
		}
		return "", nil
	}
}

// LogMark is how large the log may be, in bytes: most, or 80% of what JetStream may store if that is
// not set.
func LogMark(ctx context.Context, b *bus.Bus, most int64) (int64, error) {
	if most > 0 {
		return most, nil
	}
	store, err := b.StoreLimit(ctx)
	return store / 5 * 4, err
}

// Log looks at the size of the log. most is its mark, as [LogMark] has it.
func Log(b *bus.Bus, most int64) Look {
	return func(ctx context.Context) (string, error) {
		mark, err := LogMark(ctx, b, most)
		if err != nil {
			return "", err
		}
		stream, err := b.JS.Stream(ctx, proto.StreamEvents)
		if err != nil {
			return "", fmt.Errorf("look at the size of the log: %w", err)
		}
		if size := int64(stream.CachedInfo().State.Bytes); mark > 0 && size > mark {
			return fmt.Sprintf("the log has %d MiB and may have %d MiB (NGIT_LOG_MAX_BYTES)", size>>20, mark>>20), nil
		}
		return "", nil
	}
}
