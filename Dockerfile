# The service and the command line on a small image with glibc. Runs as an
# unprivileged user; estimates are kept in /data unless DATABASE_URL is set.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN go build -trimpath -ldflags "-s -w -X memplan/internal/obs.stamped=${VERSION}" -o /out/bin/ ./cmd/server ./cmd/memplan \
 && mkdir /out/data

FROM gcr.io/distroless/base-debian12:nonroot
COPY --from=build /out/bin/ /usr/local/bin/
COPY --from=build --chown=nonroot:nonroot /out/data /data
ENV MEMPLAN_ADDR=0.0.0.0:8080 MEMPLAN_DATA=/data MEMPLAN_LOG_FORMAT=json
VOLUME /data
EXPOSE 8080
USER nonroot
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/usr/local/bin/server", "--check"]
ENTRYPOINT ["/usr/local/bin/server"]
