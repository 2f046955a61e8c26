package relay

import (
	"bytes"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/obs"
)

// Metrics are what the relay counts. Strangers choose the kinds of events, so that only known ones
// are labels.
type Metrics struct {
	total, slow                     prometheus.Counter
	duration                        prometheus.Histogram
	messagesIn, messagesOut, events *prometheus.CounterVec
}

// NewMetrics makes and registers the metrics. An address with more than abuse connections is
// flagged.
func NewMetrics(r prometheus.Registerer, connections *limit.Fair, abuse int) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	gauge := func(name, help string, pick func(total, addresses, abusers int) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			total, addresses, abusers := connections.Counts(int64(abuse))
			return float64(pick(int(total), addresses, abusers))
		})
	}
	m := &Metrics{
		total:       counter("ngit_websocket_connections_total", "WebSocket connections since the start."),
		messagesIn:  vec("ngit_websocket_messages_received_total", "Messages of clients.", "type"),
		messagesOut: vec("ngit_websocket_messages_sent_total", "Messages to clients.", "type"),
		slow:        counter("ngit_websocket_slow_readers_total", "Connections closed because more events waited than are kept."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ngit_websocket_connection_duration_seconds",
			Help: "How long connections lasted.", Buckets: prometheus.ExponentialBuckets(0.1, 4, 10)}),
		events: vec("ngit_events_received_total", "Events that clients sent.", "kind"),
	}
	for _, c := range []prometheus.Collector{m.total, m.messagesIn, m.messagesOut, m.slow, m.duration, m.events,
		gauge("ngit_websocket_connections_active", "WebSocket connections now.", func(total, _, _ int) int { return total }),
		gauge("ngit_websocket_unique_ips", "Addresses with a WebSocket connection now.", func(_, addresses, _ int) int { return addresses }),
		gauge("ngit_websocket_flagged_abusers", "Addresses with suspiciously many WebSocket connections now.", func(_, _, abusers int) int { return abusers }),
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// Watch registers what there is of sessions of reconciliation.
func (r *Relay) Watch(to prometheus.Registerer) error {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	for _, c := range []prometheus.Collector{
		gauge("ngit_reconciliations_active", "Sessions of reconciliation (NIP-77) now.", func() float64 {
			return float64(r.sessions.Load())
		}),
		gauge("ngit_reconciliation_bytes", "Bytes of the events that these keep.", func() float64 {
			kept, _, _ := r.kept.Counts(0)
			return float64(kept)
		}),
	} {
		if err := to.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// connected counts a connection; what it gives back must be called at the end of it.
func (m *Metrics) connected() (ended func()) {
	m.total.Inc()
	start := time.Now()
	return func() { m.duration.Observe(time.Since(start).Seconds()) }
}

func (m *Metrics) received(data []byte) { m.messagesIn.WithLabelValues(typeOf(data)).Inc() }
func (m *Metrics) sent(data []byte)     { m.messagesOut.WithLabelValues(typeOf(data)).Inc() }
func (m *Metrics) slowReader()          { m.slow.Inc() }
func (m *Metrics) event(kind int)       { m.events.WithLabelValues(obs.KindLabel(kind)).Inc() }

// types are the types of messages that are labels, of clients and of ours. Whatever else a client
// writes there is "other".
var types = []string{"EVENT", "REQ", "CLOSE", "COUNT", "AUTH", "OK", "EOSE", "CLOSED", "NOTICE", "NEG-OPEN", "NEG-MSG", "NEG-CLOSE", "NEG-ERR"}

// typeOf is the type of a message as a label. It looks at the first bytes only, which need not be
// legal.
func typeOf(data []byte) string {
	const most = 64
	head := data[:min(len(data), most)]
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("["))
	if !ok {
		return "other"
	}
	if rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(`"`)); !ok {
		return "other"
	}
	for _, t := range types {
		if after, ok := bytes.CutPrefix(rest, []byte(t)); ok && len(after) > 0 && after[0] == '"' {
			return t
		}
	}
	return "other"
}
