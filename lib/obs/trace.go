package obs

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Traces export the spans of a process; nil: traces are off.
type Traces struct{ spans sdk.SpanProcessor }

// OpenTraces sets the export up as OpenTelemetry's own environment variables say. Without an
// endpoint traces are off. Spans wait for their export in a bounded queue, and are dropped when it
// is full. log is told once if there is no export.
func OpenTraces(log *slog.Logger) *Traces {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")+os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil
	}
	var once sync.Once
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		once.Do(func() { log.Warn("traces are not exported; this is told once", "error", err) })
	}))
	exporter, err := otlptracehttp.New(context.Background())
	if err != nil {
		otel.Handle(err)
		return nil
	}
	return &Traces{sdk.NewBatchSpanProcessor(exporter)}
}

// Of returns what makes the spans of a service of this process.
func (t *Traces) Of(service, worker string) *Tracer {
	if t == nil {
		return nil
	}
	named := resource.NewSchemaless(attribute.String("service.name", "tendril-"+service),
		attribute.String("service.version", Version()), attribute.String("service.instance.id", worker))
	return &Tracer{sdk.NewTracerProvider(sdk.WithSpanProcessor(t.spans), sdk.WithResource(named)).Tracer("tendril.dev")}
}

// Close exports what is left. The process waits for that no longer than two seconds.
func (t *Traces) Close() {
	if t != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = t.spans.Shutdown(ctx) // the handler of errors hears of what is not exported
	}
}

// Tracer makes the spans of a service; nil: it makes none.
type Tracer struct{ tracer trace.Tracer }

// Span makes a span of an event, from then until now, with an attribute. An empty parent begins a
// trace. Then the context of the span is returned, for [proto.HeaderTraceParent]: all other spans
// of the event are its children. It is empty if the event is not traced.
func (t *Tracer) Span(parent, name string, ev *nostr.Event, since time.Time, key, value string) string {
	if t == nil {
		return ""
	}
	w3c, carrier := propagation.TraceContext{}, propagation.MapCarrier{proto.HeaderTraceParent: parent}
	ctx, span := t.tracer.Start(w3c.Extract(context.Background(), carrier), name, trace.WithTimestamp(since),
		trace.WithAttributes(attribute.String("nostr.event.id", ev.ID), attribute.Int("nostr.event.kind", ev.Kind),
			attribute.String(key, value)))
	span.End()
	if span.SpanContext().IsSampled() {
		w3c.Inject(ctx, carrier)
	}
	return carrier[proto.HeaderTraceParent]
}
