import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.connect.proto.AddArtifactsRequest;
import org.apache.spark.connect.proto.AnalyzePlanRequest;
import org.apache.spark.connect.proto.Catalog;
import org.apache.spark.connect.proto.CheckpointCommand;
import org.apache.spark.connect.proto.ConfigRequest;
import org.apache.spark.connect.proto.CreateDataFrameViewCommand;
import org.apache.spark.connect.proto.WriteStreamOperationStart;
import org.sparkproject.connect.google_protos.rpc.ErrorInfo;
import org.sparkproject.connect.google_protos.rpc.Status;
import org.sparkproject.connect.grpc.ForwardingServerCallListener.SimpleForwardingServerCallListener;
import org.sparkproject.connect.grpc.Metadata;
import org.sparkproject.connect.grpc.ServerCall;
import org.sparkproject.connect.grpc.ServerCallHandler;
import org.sparkproject.connect.grpc.ServerInterceptor;
import org.sparkproject.connect.grpc.StatusRuntimeException;
import org.sparkproject.connect.grpc.protobuf.StatusProto;
import org.sparkproject.connect.protobuf.Any;
import org.sparkproject.connect.protobuf.Message;

/**
 * Refuses requests to Spark Connect that, by its documentation, Databricks refuses on serverless compute.
 *
 * <p>docs/platforms.md has the table. A path into a managed table begins with the scheme of `ManagedStorage`.
 */
public final class Restrictions implements ServerInterceptor {
  private static final String DOCS = "https://docs.databricks.com/";
  private static final String SERVERLESS = "Serverless compute limitations, " + DOCS + "compute/serverless/limitations";
  private static final String STREAMING = SERVERLESS + "#streaming";
  private static final String CONFIGURATION = "Set Spark configuration properties, " + DOCS + "spark/conf";
  private static final String FILE_NAME =
      "input_file_name function, " + DOCS + "sql/language-manual/functions/input_file_name.html";
  private static final String PATHS = "How do paths work for data managed by Unity Catalog?, "
      + DOCS + "data-governance/unity-catalog/paths.html";
  private static final String CLIENT = "Delta 4.4, UCDeltaCatalogClientImpl.applyRequiredProperties";
  private static final String VECTORS = "delta.enableDeletionVectors";
  private static final Set<String> SETTABLE = Set.of(
      "spark.databricks.execution.timeout", "spark.sql.ansi.enabled", "spark.sql.files.maxPartitionBytes",
      "spark.sql.legacy.timeParserPolicy", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions");
  private static final Pattern SET = Pattern.compile("^\\s*(?:RE)?SET\\s+([a-z][\\w.#]*\\.[\\w.#]+)", 2);
  private static final Pattern CACHE =
      Pattern.compile("^\\s*((?:UN)?CACHE\\s+(?:LAZY\\s+)?TABLE|CLEAR\\s+CACHE|REFRESH\\s+TABLE)\\b", 2);
  private static final Pattern GLOBAL = Pattern.compile("\\bGLOBAL\\s+TEMP(?:ORARY)?\\s+VIEW\\b|\\bglobal_temp\\.", 2);

  @Override
  public <Q, R> ServerCall.Listener<Q> interceptCall(
      ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
    return new SimpleForwardingServerCallListener<Q>(next.startCall(call, headers)) {
      private boolean refused;

      @Override
      public void onMessage(Q request) {
        try {
          visit((Message) request);
        } catch (StatusRuntimeException error) {
          refused = true;
          call.close(error.getStatus(), error.getTrailers());
          return;
        }
        super.onMessage(request);
      }

      @Override
      public void onHalfClose() {
        if (!refused) {
          super.onHalfClose();
        }
      }
    };
  }

  private void visit(Message message) {
    if (message instanceof ConfigRequest.Set set) {
      set.getPairsList().forEach(pair -> requireSettable(pair.getKey()));
    } else if (message instanceof ConfigRequest.Unset unset) {
      unset.getKeysList().forEach(this::requireSettable);
    } else if (message instanceof AnalyzePlanRequest.Persist || message instanceof AnalyzePlanRequest.Unpersist) {
      throw notSupported("PERSIST TABLE");
    } else if (message instanceof CheckpointCommand) {
      throw notSupported("CHECKPOINT");
    } else if (message instanceof Catalog catalog && catalog.getCatTypeCase().name().contains("CACHE")) {
      throw notSupported(catalog.getCatTypeCase().name());
    } else if (message instanceof CreateDataFrameViewCommand view && view.getIsGlobal()) {
      throw notSupported("GLOBAL TEMPORARY VIEW");
    } else if (message instanceof AddArtifactsRequest.SingleChunkArtifact
        || message instanceof AddArtifactsRequest.BeginChunkedArtifact) {
      forEachString(message, (field, text) -> require(
          !(field.equals("name") && text.matches("(jars|classes)/.*")), "NOT_SUPPORTED_WITH_SERVERLESS", "0A000",
          text + " is not supported on serverless compute: no JAR libraries", SERVERLESS));
    } else if (message instanceof WriteStreamOperationStart stream && !stream.getAvailableNow() && !stream.getOnce()) {
      throw refusal("INFINITE_STREAMING_TRIGGER_NOT_SUPPORTED", "0A000", "Trigger type "
          + stream.getTriggerCase() + " is not supported. Use AvailableNow or Once", STREAMING);
    }
    forEachString(message, this::visitString);
    for (Object value : message.getAllFields().values()) {
      for (Object part : value instanceof Collection<?> parts ? parts : List.of(value)) {
        if (part instanceof Message inner) {
          visit(inner);
        }
      }
    }
  }

  /** Calls `visit` with the name and the value of each text of a message, but not of those in it. */
  private static void forEachString(Message message, BiConsumer<String, String> visit) {
    message.getAllFields().forEach((field, value) -> {
      for (Object part : value instanceof Collection<?> parts ? parts : List.of(value)) {
        if (part instanceof String text) {
          visit.accept(field.getName(), text);
        }
      }
    });
  }

  private void visitString(String field, String text) {
    require(!text.toLowerCase(Locale.ROOT).contains("input_file_name"), "UC_COMMAND_NOT_SUPPORTED", "0AKUC",
        "The command(s): input_file_name are not supported in Unity Catalog. Please use _metadata.file_path", FILE_NAME);
    require(!text.contains("managed:/"), "INVALID_PARAMETER_VALUE.LOCATION_OVERLAP", "22023",
        "Input path overlaps with managed storage: " + text, PATHS);
    if (field.equals("query") || field.equals("sql")) {
      Matcher set = SET.matcher(text);
      if (set.find()) {
        requireSettable(set.group(1));
      }
      Matcher cache = CACHE.matcher(text);
      if (cache.find()) {
        throw notSupported(cache.group(1));
      }
      require(!text.contains(VECTORS + "' = 'false'"), "INTERNAL_ERROR", "XX000",
          "Cannot create table: catalog requires table property '" + VECTORS + "'='true' but the caller supplied '"
              + VECTORS + "'='false'. Remove the conflicting TBLPROPERTIES entry and retry", CLIENT);
      if (GLOBAL.matcher(text).find()) {
        throw notSupported("GLOBAL TEMPORARY VIEW");
      }
    }
  }

  private void requireSettable(String name) {
    require(SETTABLE.contains(name), "CONFIG_NOT_AVAILABLE", "42K0I", "Configuration " + name + " is not available",
        CONFIGURATION);
  }

  private static StatusRuntimeException notSupported(String what) {
    return refusal(
        "NOT_SUPPORTED_WITH_SERVERLESS", "0A000", what + " is not supported on serverless compute", SERVERLESS);
  }

  private static void require(boolean allowed, String condition, String state, String message, String source) {
    if (!allowed) {
      throw refusal(condition, state, message, source);
    }
  }

  /** Returns the error as Spark's own server would send an AnalysisException. */
  private static StatusRuntimeException refusal(String condition, String state, String message, String source) {
    ErrorInfo info = ErrorInfo.newBuilder().setReason("org.apache.spark.sql.AnalysisException")
        .setDomain("org.apache.spark").putMetadata("classes", "[\"org.apache.spark.sql.AnalysisException\"]")
        .putMetadata("errorClass", condition).putMetadata("sqlState", state).build();
    return StatusProto.toStatusRuntimeException(Status.newBuilder().setCode(13)
        .setMessage("[" + condition + "] " + message + ". SQLSTATE: " + state + " (" + source + ")")
        .addDetails(Any.pack(info)).build());
  }
}
