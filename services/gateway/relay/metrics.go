package relay

import (
	"bytes"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/limit"
)

// Metrics are what the relay counts. Strangers choose the kinds of events, so that only known ones
// are labels.
type Metrics struct {
	total, slow                     prometheus.Counter
	duration                        prometheus.Histogram
	messagesIn, messagesOut, events *prometheus.CounterVec
	rejected                        *prometheus.CounterVec
}

// NewMetrics makes and registers the metrics. An address with more than abuse connections is
// flagged. rejected counts refused events by kind and reason.
func NewMetrics(r prometheus.Registerer, connections *limit.Fair, abuse int, rejected *prometheus.CounterVec) *Metrics {
	f := promauto.With(r)
	vec := func(name, help, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	gauge := func(name, help string, pick func(total, addresses, abusers int) int) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			total, addresses, abusers := connections.Counts(int64(abuse))
			return float64(pick(int(total), addresses, abusers))
		})
	}
	gauge("ngit_websocket_connections_active", "WebSocket connections now.", func(total, _, _ int) int { return total })
	gauge("ngit_websocket_unique_ips", "Addresses with a WebSocket connection now.",
		func(_, addresses, _ int) int { return addresses })
	gauge("ngit_websocket_flagged_abusers", "Addresses with suspiciously many WebSocket connections now.",
		func(_, _, abusers int) int { return abusers })
	return &Metrics{
		total: f.NewCounter(prometheus.CounterOpts{Name: "ngit_websocket_connections_total",
			Help: "WebSocket connections since the start."}),
		slow: f.NewCounter(prometheus.CounterOpts{Name: "ngit_websocket_slow_readers_total",
			Help: "Connections closed because too much waited for a slow reader."}),
		duration: f.NewHistogram(prometheus.HistogramOpts{Name: "ngit_websocket_connection_duration_seconds",
			Help: "How long connections lasted.", Buckets: prometheus.ExponentialBuckets(0.1, 4, 10)}),
		messagesIn:  vec("ngit_websocket_messages_received_total", "Messages of clients.", "type"),
		messagesOut: vec("ngit_websocket_messages_sent_total", "Messages to clients.", "type"),
		events:      vec("ngit_events_received_total", "Events that clients sent.", "kind"),
		rejected:    rejected,
	}
}

// types are the types of messages that are labels, of clients and of ours. What else a client
// writes there is "other".
var types = []string{"EVENT", "REQ", "CLOSE", "COUNT", "AUTH", "OK", "EOSE", "CLOSED", "NOTICE", "NEG-OPEN", "NEG-MSG",
	"NEG-CLOSE", "NEG-ERR"}

// typeOf is the type of a message as a label. It looks at the first bytes only, which need not be
// legal.
func typeOf(data []byte) string {
	_, rest, _ := bytes.Cut(data[:min(len(data), 64)], []byte{'"'})
	name, _, ends := bytes.Cut(rest, []byte{'"'})
	if i := slices.IndexFunc(types, func(t string) bool { return t == string(name) }); ends && i >= 0 {
		return types[i]
	}
	return "other"
}
